//! The commands of `sh` blocks in the documents, and for each how a test runs it, or the reason why none does.
//!
//! Scripts are bash, with [`PRELUDE`] before them and options `-eu -o pipefail`, in an empty directory. They have values
//! for placeholders, and sizes that suit a small machine. `CMD` is a program that does nothing.

use std::path::Path;
use std::process::Command;

/// How a test runs a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Run {
    /// On the host, as it stands.
    Host,
    /// On the host, by this script.
    HostBy(&'static str),
    /// As root in a guest that has near and far memory, as it stands.
    Guest,
    /// There, by this script.
    GuestBy(&'static str),
    /// By the test function of this name.
    Test(&'static str),
    /// By no test, for this reason.
    Never(&'static str),
}

use Run::{Guest, GuestBy, Host, HostBy, Never, Test};

/// `serve` starts a cache server with the given options and returns when it listens; it must end well when the script
/// does. `service` starts a command in the background and returns when the second one succeeds.
const PRELUDE: &str = r#"
finish() {
    status=$?
    [ -z "${server:-}" ] || { kill "$server"; wait "$server" || status=$?; }
    exit $status
}
trap finish EXIT
mkdir bin; printf '#!/bin/sh\n' > bin/CMD; chmod +x bin/CMD; PATH=$PATH:$PWD/bin
alive() { kill -0 "$server" || { cat server.log >&2; exit 1; }; sleep 0.1; }
serve() {
    nearfar cache serve "$@" 2> server.log & server=$!
    until grep -q threads server.log; do alive; done
}
service() {
    $1 > server.log 2>&1 & server=$!
    until $2 > /dev/null 2>&1; do alive; done
}
"#;

const BUILD: &str = "builds; continuous integration does";
const UNITS: &str = "needs systemd in charge; the units are verified by a test of make install";
const CONTAINERS: &str = "needs a container engine; tests run crun by the same command";
const CLUSTER: &str =
    "needs a cluster; make kubernetes runs a kubelet and an API server in the lab";
const LONG: &str = "takes many minutes; a test runs a shorter one";
const LAB: &str = "boots a guest of its own; tests of the lab do";

/// A shell that runs a script in this directory, with the built programs first in PATH.
pub(crate) fn shell(script: &str, directory: &Path, nearfar: &Path) -> Command {
    let programs = nearfar.parent().map(Path::to_path_buf);
    let others = std::env::var_os("PATH").unwrap_or_default();
    let paths = programs.into_iter().chain(std::env::split_paths(&others));
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &format!("{PRELUDE}{script}")]);
    shell.current_dir(directory).env("PATH", std::env::join_paths(paths).unwrap_or_default());
    shell
}

/// By file: the commands in order of their runs. `*` stands for all commands of a file that are not listed.
pub(crate) const COMMANDS: &[(&str, &[(&str, Run)])] = &[
    (
        "README.md",
        &[
            ("make build", Never(BUILD)),
            (
                "make install",
                Test("a_c_program_builds_against_the_installed_libraries_shared_and_static"),
            ),
            ("make package", Never("builds; make package-test tries the packages in a bare root")),
            ("make demo", Never(LONG)),
        ],
    ),
    (
        "CONTRIBUTING.md",
        &[(
            "*",
            Never("runs tests; continuous integration runs the first, make test-all the others"),
        )],
    ),
    (
        "docs/alloc.md",
        &[
            ("nearfar run --heap far -- CMD", Guest),
            ("nearfar run --heap 'far;limit=4g;spill=near' -- CMD", Guest),
            ("make library", Never(BUILD)),
            (
                "cc -I crates/alloc/include program.c -L target/abi -lnearfar -Wl,-rpath,$PWD/target/abi",
                HostBy(
                    "cc -I $ROOT/crates/alloc/include $ROOT/artefacts/libnearfar/tests/example.c -L $ABI -lnearfar",
                ),
            ),
            (
                "cc program.c $(pkg-config --cflags --libs nearfar)",
                Test("a_c_program_builds_against_the_installed_libraries_shared_and_static"),
            ),
        ],
    ),
    (
        "docs/balance.md",
        &[
            ("nearfar balance start --dry-run", Guest),
            ("nearfar balance start", Guest),
            ("nearfar balance status --json", Guest),
            ("nearfar why", Guest),
            ("nearfar balance stop", Guest),
            (
                "nearfar balance start --policy carrefour",
                GuestBy("nearfar balance start --policy carrefour && nearfar balance stop"),
            ),
            ("echo 'OPTIONS=\"--rate 200\"' | sudo tee /etc/default/nearfar-balance", Never(UNITS)),
            ("sudo systemctl enable --now nearfar-balance", Never(UNITS)),
        ],
    ),
    (
        "docs/bench-tiering.md",
        &[
            ("make bench-tiering", Never(LONG)),
            ("nearfar-bench tiering --dry-run", Host),
            ("*", Never("takes half an hour of guests, or needs the result of one")),
        ],
    ),
    (
        "docs/cache-bench.md",
        &[
            (
                "nearfar cache bench --workload zipf:0.99 --threads 2",
                HostBy("nearfar cache bench --workload zipf:0.99 --threads 2 --seconds 1"),
            ),
            (
                "nearfar cache bench --workload zipf:0.99 -m near=4g -m far=12g",
                GuestBy(
                    "nearfar cache bench --workload zipf:0.99 -m near=64m -m far=192m --seconds 1",
                ),
            ),
            (
                "nearfar cache bench --server 127.0.0.1:11211 --workload zipf:0.99 --depth 16 --multiget 10",
                GuestBy(
                    "serve; nearfar cache bench --server 127.0.0.1:11211 --workload zipf:0.99 --depth 16 \
                     --multiget 10 --seconds 1 --keys 10000",
                ),
            ),
            (
                "nearfar cache bench --server unix:/run/mc.sock --workload uniform --preload --rate 50000 --html page.html",
                HostBy(
                    "serve -s mc.sock; nearfar cache bench --server unix:mc.sock --workload uniform --preload \
                     --rate 5000 --keys 1000 --seconds 1 --html page.html; grep -q '</html>' page.html",
                ),
            ),
            (
                "nearfar cache bench --workload DIR --keys 1000000",
                Test("cachebench_workloads_and_public_traces_run_in_process_and_over_a_server"),
            ),
            (
                "nearfar cache bench --workload trace:kvcache.csv.zst --verify",
                Test("cachebench_workloads_and_public_traces_run_in_process_and_over_a_server"),
            ),
            (
                "nearfar cache bench --workload csv:key=5,size=4:cloudPhysicsIO.csv --memory 4g",
                HostBy(
                    "printf '1,2,3,512,7,0\\n1,2,3,512,8,0\\n' > io.csv; \
                     nearfar cache bench --workload csv:key=5,size=4:io.csv --memory 64m",
                ),
            ),
        ],
    ),
    ("docs/cache-copy.md", &[("*", Never("sets a device up that no host of the tests has"))]),
    (
        "docs/cache-disk.md",
        &[
            (
                "nearfar cache serve -m near=4g -m far=16g --disk /var/cache/below=200g",
                GuestBy("serve -m near=64m -m far=128m --disk below=256m"),
            ),
            (
                "nearfar cache serve -m near=4g --disk /dev/nvme1n1=800g --disk-format --disk-writes 2t",
                GuestBy("serve -m near=64m --disk below=256m --disk-format --disk-writes 2t"),
            ),
            (
                "nearfar cache serve --dry-run -m near=4g --disk /var/cache/below=200g",
                GuestBy(
                    "nearfar cache serve --dry-run -m near=64m --disk below=256m; test ! -e below",
                ),
            ),
            (
                "cargo run --release -p nearfar-cache --example disk_hybrid -- FILE seconds=20",
                Never("a benchmark"),
            ),
        ],
    ),
    (
        "docs/cache-protocol.md",
        &[
            ("nearfar cache serve -m near=4g &", GuestBy("serve -m near=64m")),
            (
                "printf 'set greeting 0 0 5\\r\\nhello\\r\\nget greeting\\r\\nmg greeting v t\\r\\nquit\\r\\n' | nc 127.0.0.1 11211",
                GuestBy(
                    "serve -m near=64m; exec 3<>/dev/tcp/127.0.0.1/11211; \
                     printf 'set greeting 0 0 5\\r\\nhello\\r\\nget greeting\\r\\nmg greeting v t\\r\\nquit\\r\\n' >&3; \
                     test \"$(tr -d '\\r' <&3 | tr '\\n' ' ')\" = \
                     'STORED VALUE greeting 0 5 hello END VA 5 t-1 hello '",
                ),
            ),
        ],
    ),
    (
        "docs/cache.md",
        &[
            ("nearfar cache serve", GuestBy("serve")),
            (
                "nearfar cache serve -m 1024 -l localhost,10.0.0.7",
                GuestBy("serve -m 1024 -l localhost,127.0.0.2"),
            ),
            ("nearfar cache serve -m near=4g -m far=16g", GuestBy("serve -m near=64m -m far=128m")),
            (
                "nearfar cache serve -m weighted:near,far=16g",
                GuestBy("serve -m weighted:near,far=128m"),
            ),
            (
                "nearfar cache serve -m near=4g -m far=16g --disk /var/cache/below=200g",
                GuestBy("serve -m near=64m -m far=128m --disk below=256m"),
            ),
            (
                "nearfar cache serve -s /run/cache.sock -a 660",
                GuestBy("serve -s cache.sock -a 660; test \"$(stat -c %a cache.sock)\" = 660"),
            ),
            (
                "nearfar cache serve --metrics 127.0.0.1:9150 ...",
                GuestBy(
                    "serve --metrics 127.0.0.1:9150; exec 3<>/dev/tcp/127.0.0.1/9150; \
                     printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; grep -q nearfar_cache_uptime_seconds <&3",
                ),
            ),
            (
                "nearfar cache serve -u nobody -m near=4g ...",
                GuestBy(
                    "serve -u nobody -m near=64m; test \"$(stat -c %U /proc/$server)\" = nobody",
                ),
            ),
            (
                "nearfar cache serve --dry-run -m near=4g ...",
                GuestBy("nearfar cache serve --dry-run -m near=64m"),
            ),
            (
                "echo 'OPTIONS=\"-m near=4g -m far=16g -l 127.0.0.1\"' | sudo tee /etc/default/nearfar-cache",
                Never(UNITS),
            ),
            ("sudo systemctl enable --now nearfar-cache", Never(UNITS)),
        ],
    ),
    ("docs/containers.md", &[("*", Never(CONTAINERS))]),
    (
        "docs/daemon.md",
        &[
            ("nearfar daemon --once", Guest),
            ("nearfar daemon", GuestBy("service 'nearfar daemon' 'nearfar daemon status'")),
            (
                "nearfar daemon --tierd",
                GuestBy(
                    "service 'nearfar daemon --tierd' 'nearfar daemon status'; test -e /run/tierd",
                ),
            ),
            (
                "nearfar daemon status",
                GuestBy("service 'nearfar daemon' 'nearfar daemon status'; nearfar daemon status"),
            ),
            (
                "nearfar daemon --recover",
                GuestBy(
                    "service 'nearfar daemon' 'nearfar daemon status'; kill -9 $server; wait $server || true; \
                     server=; nearfar daemon --recover",
                ),
            ),
            (
                "echo 'OPTIONS=\"--config /etc/nearfar/daemon.toml\"' | sudo tee /etc/default/nearfar-daemon",
                Never(UNITS),
            ),
            ("sudo systemctl enable --now nearfar-daemon", Never(UNITS)),
        ],
    ),
    (
        "docs/fleet.md",
        &[
            (
                "nearfar record --all -o /dev/null --parquet /var/lib/nearfar/records",
                GuestBy("nearfar record --all -o /dev/null --parquet records --duration 2s"),
            ),
            (
                "nearfar record -o FILE --parquet DIR --workload search -- CMD",
                GuestBy("nearfar record -o FILE --parquet DIR --workload search -- sleep 2"),
            ),
            (
                "nearfar report parquet FILE DIR --host web-1",
                GuestBy(
                    "nearfar record -o FILE -- sleep 2; nearfar report parquet FILE DIR --host web-1",
                ),
            ),
        ],
    ),
    ("docs/kubernetes.md", &[("*", Never(CLUSTER))]),
    ("docs/lab.md", &[("nearfar lab machines", Host), ("*", Never(LAB))]),
    (
        "docs/record.md",
        &[
            ("nearfar record -o FILE -- CMD", GuestBy("nearfar record -o /tmp/FILE -- sleep 2")),
            (
                "nearfar record -o FILE --cgroup PATH",
                GuestBy(
                    "mkdir /sys/fs/cgroup/recorded; sleep 1000 & echo $! > /sys/fs/cgroup/recorded/cgroup.procs; \
                     nearfar record -o FILE --cgroup recorded --duration 2s; kill $!",
                ),
            ),
            ("nearfar report heatmap FILE", GuestBy("nearfar report heatmap /tmp/FILE")),
            ("nearfar report wss FILE", GuestBy("nearfar report wss /tmp/FILE")),
            (
                "nearfar record --all --parquet DIR",
                GuestBy("nearfar record --all --parquet DIR --duration 2s"),
            ),
            ("*", Never("draws the picture in the document; boots a guest of its own")),
        ],
    ),
    ("docs/tutorial-demo.md", &[("nearfar demo --lab --out demo", Never(LONG))]),
    (
        "docs/run.md",
        &[
            ("nearfar run -p near -- CMD", Guest),
            ("nearfar run -m far -- CMD", Guest),
            ("nearfar run -w auto --report -- CMD", Guest),
            ("nearfar run -w near=3,far=1 -- CMD", Guest),
            ("nearfar run -N 0 -m same -- CMD", Guest),
            ("nearfar run -m far --report -- CMD", Guest),
            ("nearfar run -w auto --dry-run -- CMD", Guest),
        ],
    ),
    (
        "docs/sense.md",
        &[
            ("nearfar sense", Guest),
            (
                "nearfar sense --sensor hint-faults --pid 4711 --duration 10s",
                GuestBy("nearfar sense --sensor hint-faults --pid $$ --duration 1s"),
            ),
            ("nearfar sense --sensor latency --json", Guest),
        ],
    ),
    (
        "docs/sim.md",
        &[
            ("nearfar sim list", Host),
            (
                "nearfar sim compare --machine numa-4node --workload streamcluster --policies first-touch,interleave,carrefour,balanced",
                Host,
            ),
            (
                "nearfar sim compare --machine colloid-135ns --workload hot-set --contention 3 --policies first-touch,colloid,oracle",
                Host,
            ),
            (
                "nearfar sim compare --workload FILE.toml --antagonist 1=40% --policies first-touch,balanced,oracle",
                Test("a_workload_file_is_compared_and_traffic_of_others_slows_it_down"),
            ),
            (
                "nearfar sim compare --machine examples/sim/expander-machine.toml --workload examples/sim/expander.toml --policies first-touch,interleave,oracle",
                Test("the_example_of_an_expander_is_compared"),
            ),
            ("nearfar sim validate", Test("validation_passes_and_marks_fitted_figures")),
            (
                "nearfar sim tiers --seconds 10,20,40,80",
                Test("controllers_over_time_have_a_row_for_each_latency"),
            ),
            ("nearfar dev sim-lab FILE", Test("the_model_is_compared_with_results_of_the_lab")),
            ("nearfar sim fleet", Test("a_fleets_day_states_its_sampling")),
            ("nearfar dev sim-bench", Never(LONG)),
        ],
    ),
    (
        "docs/tier.md",
        &[
            ("nearfar tier start --dry-run", Guest),
            ("nearfar tier start", Guest),
            ("nearfar tier status --json", Guest),
            ("nearfar why", Guest),
            ("nearfar tier config", Guest),
            ("nearfar tier stop", Guest),
            ("nearfar run --tier -- CMD", GuestBy("nearfar run --tier -- sleep 1")),
            (
                "nearfar tier start --cgroup db --near-max 4g --near-max /web=1g --near-min /web=512m",
                GuestBy(
                    "echo +memory > /sys/fs/cgroup/cgroup.subtree_control; \
                     mkdir -p /sys/fs/cgroup/db /sys/fs/cgroup/web; \
                     nearfar tier start --cgroup db --near-max 64m --near-max /web=32m --near-min /web=16m; \
                     nearfar tier stop",
                ),
            ),
            (
                "nearfar tier start --near-attributes",
                GuestBy("nearfar tier start --near-attributes; nearfar tier stop"),
            ),
            (
                "setfattr -n user.nearfar.near_max -v 4g /sys/fs/cgroup/db",
                Test("budgets_of_cgroup_attributes_are_set_and_removed_with_them"),
            ),
            ("echo 'OPTIONS=\"--headroom 5\"' | sudo tee /etc/default/nearfar-tier", Never(UNITS)),
            ("sudo systemctl enable --now nearfar-tier", Never(UNITS)),
        ],
    ),
    (
        "docs/topo.md",
        &[
            ("nearfar topo", Guest),
            ("nearfar topo --json", Guest),
            ("nearfar topo --draw", Guest),
            (
                "nearfar topo --record machine.tree",
                GuestBy("nearfar topo --record /tmp/machine.tree"),
            ),
            (
                "nearfar topo --sysfs machine.tree",
                GuestBy("nearfar topo --sysfs /tmp/machine.tree"),
            ),
            ("nearfar snapshot problem.json", Guest),
            (
                "nearfar move 4711 far --save before.json",
                GuestBy("nearfar move $$ far --save before.json; nearfar move --undo before.json"),
            ),
            ("nearfar move 4711 far --dry-run", GuestBy("nearfar move $$ far --dry-run")),
            (
                "nearfar move --undo before.json",
                Test("the_move_command_moves_a_programs_memory_and_reverts_it"),
            ),
            ("nearfar topo --kind 2=hbm", GuestBy("nearfar topo --kind 1=hbm")),
            ("nearfar doctor", Guest),
            ("nearfar doctor --unprivileged", Guest),
            ("nearfar ps", Guest),
            ("nearfar ps 4711", GuestBy("nearfar ps $$")),
            (
                "nearfar ps --cgroup system.slice --watch 2s",
                GuestBy("mkdir -p /sys/fs/cgroup/of-ps; nearfar ps --cgroup of-ps"),
            ),
            ("nearfar ps --cgroups", Guest),
        ],
    ),
    (
        "docs/vm.md",
        &[
            ("nearfar topo", Guest),
            ("nearfar vm list", Guest),
            (
                "nearfar vm args -- qemu-system-x86_64 ...",
                GuestBy("nearfar vm args -- qemu-system-x86_64 -m 1G"),
            ),
            ("nearfar vm xml --cell 1=cxl domain.xml", Test("xml_is_patched_from_standard_input")),
            ("*", Test("a_cxl_backend_is_on_the_cxl_node_and_verified")),
        ],
    ),
    (
        "examples/cache-fleet/README.md",
        &[(
            "*",
            Never("sets a cluster of servers up; its settings are checked by tests/cache_fleet.rs"),
        )],
    ),
    ("examples/fleet/README.md", &[("*", Test("the_queries_find_the_misplaced_hosts"))]),
    (
        "docs/machine-file.md",
        &[
            ("nearfar lab machines", Host),
            (
                "nearfar lab machines FILE",
                HostBy("nearfar lab machines $ROOT/lab/machines/cxl-2tier.toml"),
            ),
            ("nearfar lab run --machine FILE -- CMD", Never(LAB)),
        ],
    ),
    ("lab/workloads/README.md", &[("nearfar-bench workload", Host), ("*", Never(LONG))]),
    (
        "artefacts/python/README.md",
        &[("*", Never("needs the wheel; make python installs and tests it"))],
    ),
    (
        "artefacts/libhmalloc/README.md",
        &[
            ("make library", Never(BUILD)),
            ("make build", Never(BUILD)),
            ("*", Test("options_set_the_memory_policy_of_a_libhmalloc_program")),
        ],
    ),
    (
        "artefacts/libsmalloc/README.md",
        &[("*", Test("the_headers_compile_under_old_and_new_c_and_c_plus_plus_standards"))],
    ),
];
