//! `nearfar sim` and `nearfar dev sim-*` from a user's view: output, refused arguments, and equal results for equal seeds.

#![expect(clippy::unwrap_used, reason = "a test that can't run the program should stop")]

use std::process::{Command, Output};

mod browser;

use serde_json::Value;

fn nearfar(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nearfar")).args(words).output().unwrap()
}

fn sim(words: &[&str]) -> Output {
    nearfar(&[&["sim"], words].concat())
}

fn json(words: &[&str]) -> Value {
    document(words, &sim(&[words, &["--json"]].concat()))
}

fn document(words: &[&str], done: &Output) -> Value {
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

/// `nearfar dev sim-bench`.
fn bench(words: &[&str]) -> Output {
    nearfar(&[&["dev", "sim-bench"], words].concat())
}

fn bench_json(words: &[&str]) -> Value {
    document(words, &bench(&[words, &["--json"]].concat()))
}

const COMPARE: [&str; 7] = [
    "compare",
    "--machine",
    "numa-4node",
    "--workload",
    "streamcluster",
    "--policies",
    "first-touch,interleave",
];

#[test]
fn a_comparison_has_every_figure_of_every_policy_as_a_fraction() {
    let found = json(&COMPARE);
    assert_eq!((&found["schema"], &found["simulated"]), (&"nearfar.sim/1".into(), &true.into()));
    let results = found["results"].as_array().unwrap();
    let policies: Vec<_> = results.iter().map(|of| of["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["first-touch", "interleave"]);
    let figure = |at: usize, name: &str| results[at][name].as_f64().unwrap();
    for (at, latency, controllers, links, speedup) in
        [(0, 1169.0, 2.0, 0.86, 1.0), (1, 471.0, 0.0, 0.21, 2.05)]
    {
        assert!((figure(at, "latency_cycles") / latency - 1.0).abs() < 0.1, "{found}");
        assert!((figure(at, "controller_imbalance") - controllers).abs() < 0.2, "{found}");
        assert!((figure(at, "interconnect_imbalance") / links - 1.0).abs() < 0.2, "{found}");
        assert!((figure(at, "speedup_vs_first_touch") / speedup - 1.0).abs() < 0.1, "{found}");
        assert!((figure(at, "local_access_ratio") - 0.25).abs() < 0.02, "{found}");
    }
}

#[test]
fn a_seed_determines_the_result() {
    let run = |seed: &str| sim(&[&COMPARE[..], &["--json", "--seed", seed]].concat()).stdout;
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn every_output_says_that_it_is_simulated() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let text = sim(&[&COMPARE[..], &["--html", page.to_str().unwrap()]].concat());
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("SIMULATED machine numa-4node") && text.contains("no claim about"));
    assert!(text.contains("\nFastest here: "), "{text}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("Simulated: ") && page.contains("latency-title"), "{page}");
    assert!(!page.contains("<script") && !page.contains("http://") && !page.contains("https://"));
    let validation = String::from_utf8(sim(&["validate"]).stdout).unwrap();
    assert!(validation.starts_with("SIMULATED figures"), "{validation}");
}

#[test]
fn controllers_are_compared_with_static_placements() {
    let words = ["compare", "--machine", "numa-4node", "--workload", "streamcluster", "--policies"];
    let found = json(&[&words[..], &["first-touch,interleave,carrefour,balanced"]].concat());
    let results = found["results"].as_array().unwrap();
    let figure = |at: usize, name: &str| results[at][name].as_f64().unwrap();
    for at in [2, 3] {
        assert!(figure(at, "speedup_vs_first_touch") > 1.9, "{found}");
        assert!(figure(at, "latency_cycles") < 0.5 * figure(0, "latency_cycles"), "{found}");
        assert!(figure(at, "controller_imbalance") < 0.36, "{found}");
        assert!(results[at]["moved_bytes"].as_u64() > Some(1 << 25), "{found}");
    }
}

#[test]
fn charts_fit_a_phone_and_a_desktop() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    for (name, words) in [("compare", &COMPARE[..]), ("tiers", &["tiers", "--seconds", "1"])] {
        let [page, picture] = [file(&format!("{name}.html")), file(&format!("{name}.svg"))];
        let more = ["--html", page.to_str().unwrap(), "--svg", picture.to_str().unwrap()];
        assert!(sim(&[words, &more].concat()).status.success());
        browser::fits(&page, "no claim about any hardware");
        let picture = std::fs::read_to_string(picture).unwrap();
        assert!(picture.starts_with("<svg") && picture.contains("SIMULATED"), "{picture}");
        assert_eq!(picture.matches("<svg").count(), picture.matches("</svg>").count());
    }
}

#[test]
fn a_fleets_day_states_its_sampling() {
    let words = ["fleet", "--hosts", "2"];
    let found = json(&words);
    assert_eq!(
        (&found["schema"], &found["sampled_host_hours"]),
        (&"nearfar.sim-fleet/1".into(), &6.into())
    );
    assert!(found["speedup_vs_off"]["mean"].as_f64() > Some(0.9), "{found}");
    let text = String::from_utf8(sim(&words).stdout).unwrap();
    assert!(
        text.starts_with("SIMULATED fleet: 2 hosts of 1 TiB") && text.contains("6 of 48"),
        "{text}"
    );
    let refused = sim(&["fleet", "--policy", "interleave"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && said.contains("--policy interleave"), "{said}");
}

#[test]
fn validation_passes_and_marks_fitted_figures() {
    let found = json(&["validate"]);
    assert_eq!(
        (&found["schema"], &found["within_bounds"]),
        (&"nearfar.sim-validation/2".into(), &true.into())
    );
    let rows = found["rows"].as_array().unwrap();
    let ways = |how: &str| rows.iter().filter(|row| row["how"] == how).count();
    let counts = ["fitted", "implied", "predicted", "limit"].map(ways);
    assert_eq!((rows.len(), counts), (44, [18, 16, 8, 2]), "{found}");
    for (how, count) in ["fitted", "implied", "predicted", "limit"].iter().zip(counts) {
        assert_eq!(found["counts"][how], count, "{found}");
    }
    let parameters = found["parameters"].as_array().unwrap();
    assert!(parameters.len() == 22 && parameters.iter().all(|of| of["fitted_to"] != ""), "{found}");
    assert_eq!(
        (&found["service_times"], found["solvers"].as_array().unwrap().len()),
        (&"exponential".into(), 4)
    );
    let text = String::from_utf8(sim(&["validate"]).stdout).unwrap();
    for part in
        ["8 predicted", "Free parameters: 21 numbers and 1 choice", "exact", "exponentially"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn unknown_names_are_refused() {
    for (words, part) in [
        (&["compare", "--policies", "luck"][..], "policy luck"),
        (&["compare"], "--policies"),
        (&["compare", "--policies", "oracle", "--machine", "nowhere"], "machine nowhere"),
        (&["compare", "--policies", "oracle", "--machine", "cxl-2tier"], "[traffic] table"),
        (&["compare", "--policies", "oracle", "--workload", "chess"], "workload chess"),
        (&["compare", "--policies", "oracle", "--workload", "hot-set"], "72 GiB"),
        (&["compare", "--policies", "colloid"], "policy colloid on machine numa-4node"),
        (&["compare", "--policies", "oracle", "--contention", "2"], "has no contention"),
        (&["compare", "--policies", "oracle", "--contention", "1000"], "0 to 100"),
        (&["compare", "--policies", "oracle", "--workload", "./nowhere.toml"], "nowhere.toml"),
        (&["compare", "--policies", "oracle", "--antagonist", "1"], "NODE=GBPS"),
        (&["compare", "--policies", "oracle", "--antagonist", "7=1"], "allowed is 0 to 3"),
        (&["compare", "--policies", "oracle", "--antagonist", "1=200%"], "allowed is 0 to 95"),
        (&["tiers", "--policies", "colloid,oracle"], "--policies oracle: it does not migrate"),
        (&["fleet", "--policy", "interleave"], "--policy interleave: it does not migrate"),
    ] {
        let done = sim(words);
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.code() == Some(2) && said.contains(part), "{words:?}: {said}");
        assert!(done.stdout.is_empty());
    }
    let refused = bench(&["--trace", "/dev/null"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("/dev/null"), "{said}");
}

#[test]
fn a_workload_file_is_compared_and_traffic_of_others_slows_it_down() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/sim/three-programs.toml");
    let words = ["compare", "--workload", file, "--policies", "first-touch,interleave,oracle"];
    let found = json(&words);
    assert_eq!(found["workload"], "three-programs");
    assert_eq!(found["antagonists"][0]["node"], 2, "{found}");
    let speedup = |at: usize| found["results"][at]["speedup_vs_first_touch"].as_f64().unwrap();
    assert!(speedup(2) >= speedup(1) && speedup(2) > 1.1, "{found}");
    let gbps = |found: &Value| found["results"][1]["throughput_gbps"].as_f64().unwrap();
    let more = json(&[&words[..], &["--antagonist", "1=80%", "--antagonist", "3=2"]].concat());
    assert_eq!(more["antagonists"].as_array().unwrap().len(), 3, "{more}");
    assert!(gbps(&more) < 0.95 * gbps(&found), "{more}");
    let text = String::from_utf8(sim(&words).stdout).unwrap();
    assert!(text.contains("traffic of others: node 2 read by CPUs of node 2"), "{text}");
}

#[test]
fn the_example_of_an_expander_is_compared() {
    let at = |name: &str| format!("{}/../../examples/sim/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let (machine, workload) = (at("expander-machine"), at("expander"));
    let words = ["compare", "--machine", &machine, "--workload", &workload, "--policies"];
    let found = json(&[&words[..], &["first-touch,interleave,oracle"]].concat());
    let speedup = |at: usize| found["results"][at]["speedup_vs_first_touch"].as_f64().unwrap();
    assert!(speedup(2) > 1.0 && speedup(1) < 1.0, "{found}");
}

#[test]
fn the_list_has_the_arguments_of_a_comparison() {
    let text = String::from_utf8(sim(&["list"]).stdout).unwrap();
    let line = text.lines().find(|line| line.contains("carrefour-replicate")).unwrap();
    assert!(line.contains("carrefour-replicate  the same"), "names and texts are columns: {line}");
    let found = json(&["list"]);
    let names = |of: &str| {
        let all = found[of].as_array().unwrap().iter();
        all.map(|of| of["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("machines"), ["numa-4node", "spr-cxl", "cxl-2socket", "xeon-max"]);
    assert_eq!(
        names("workloads"),
        ["streamcluster", "pca", "private", "false-sharing", "hot-page", "hot-set"]
    );
    for workload in ["streamcluster", "pca", "private", "false-sharing", "hot-page"] {
        json(&["compare", "--workload", workload, "--policies", "first-touch,interleave,oracle"]);
    }
    for machine in names("studies") {
        let words = ["compare", "--machine", &machine, "--workload", "hot-set", "--policies"];
        json(&[&words[..], &["first-touch,oracle"]].concat());
    }
    let words = ["compare", "--machine", "colloid-192ns", "--workload", "hot-set", "--policies"];
    json(&[&words[..], &[&names("policies").join(",")]].concat());
}

#[test]
fn colloid_leaves_contended_near_memory() {
    let words = ["compare", "--machine", "colloid-135ns", "--workload", "hot-set"];
    let more = ["--contention", "3", "--policies", "first-touch,colloid,oracle"];
    let found = json(&[&words[..], &more[..]].concat());
    let speedup = |at: usize| found["results"][at]["speedup_vs_first_touch"].as_f64().unwrap();
    // Published: 2.36.
    assert!((speedup(1) / 2.36 - 1.0).abs() < 0.05 && speedup(2) >= speedup(1), "{found}");
    assert!(found["results"][1]["moved_bytes"].as_u64() > Some(1 << 30), "{found}");
}

#[test]
fn controllers_over_time_have_a_row_for_each_latency() {
    let found = json(&["tiers", "--seconds", "1"]);
    let rows = found["rows"].as_array().unwrap();
    assert!(rows.len() == 12 && found["schema"] == "nearfar.sim-tiers/2", "{found}");
    for row in rows {
        let phases = row["phases"].as_array().unwrap();
        assert_eq!(phases.len(), 6);
        let whole = row["whole_of_oracle"].as_f64().unwrap();
        assert!(whole > 0.3 && whole < 1.02, "{row}");
        for phase in phases {
            let share = phase["of_oracle"].as_f64().unwrap();
            assert!(share > 0.3 && share < 1.02, "{row}");
        }
    }
    let text = String::from_utf8(sim(&["tiers", "--seconds", "1"]).stdout).unwrap();
    assert!(text.starts_with("SIMULATED") && text.contains("135 ns  first-touch"), "{text}");
    let several = json(&["tiers", "--phases", "1,2", "--policies", "colloid,first-touch"]);
    let rows = several["rows"].as_array().unwrap();
    let of = |at: usize| (rows[at]["policy"].as_str().unwrap(), rows[at]["phase_seconds"].as_u64());
    let first = [0, 1, 2, 3].map(of);
    let wanted = [
        ("colloid", Some(1)),
        ("colloid", Some(2)),
        ("first-touch", Some(1)),
        ("first-touch", Some(2)),
    ];
    assert_eq!((rows.len(), first), (16, wanted), "{several}");
    let refused = sim(&["tiers", "--phases", "10,0"]);
    assert!(refused.status.code() == Some(2), "{refused:?}");
}

#[test]
fn a_stream_does_not_depend_on_the_number_of_threads() {
    for source in ["uniform", "zipf", "hot-set"] {
        let run = |threads| {
            let found = bench_json(&["--millions", "3", "--source", source, "--threads", threads]);
            assert!(found["accesses_per_second"].as_f64() > Some(0.0), "{found}");
            [
                "accesses",
                "epochs",
                "pages_touched_in_last_epoch",
                "controller_imbalance",
                "throughput_gbps",
            ]
            .map(|name| found[name].clone())
        };
        assert_eq!(run("1"), run("3"), "{source}");
    }
}

#[test]
fn a_record_is_played_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hot.record");
    let record = nearfar_record::testkit::moving_hot_set();
    let mut writer = nearfar_record::Writer::create(&path, &record.header).unwrap();
    writer.all(&record).unwrap();
    writer.end(record.ending.unwrap()).unwrap();
    let found = bench_json(&["--millions", "2", "--trace", path.to_str().unwrap()]);
    // 5 GiB were monitored, of which 256 MiB are hot and 128 MiB lukewarm at a time.
    assert_eq!(found["pages"], 5 << 18, "{found}");
    assert!(found["pages_touched_in_last_epoch"].as_u64() <= Some(384 << 8), "{found}");
}

#[test]
fn a_damaged_record_is_replayed_to_the_damage_or_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd.record");
    let record = nearfar_record::testkit::moving_hot_set();
    let mut writer = nearfar_record::Writer::create(&path, &record.header).unwrap();
    writer.all(&record).unwrap();
    writer.end(record.ending.unwrap()).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let cut = [0, 1, 7, 8, 9, 40, whole.len() / 2, whole.len() - 1].map(|at| whole[..at].to_vec());
    let overwritten = [8, 12, 40, whole.len() / 3, whole.len() - 20].map(|at| {
        let mut bytes = whole.clone();
        bytes[at..at + 8].fill(0xff);
        bytes
    });
    let snapshot = |start: &str, end: &str, accesses: &str| {
        let region = format!(r#"{{"start":{start},"end":{end},"nr_accesses":{accesses},"age":1}}"#);
        let snapshot =
            format!(r#"{{"start_time":0,"end_time":18446744073709551615,"regions":[{region}]}}"#);
        format!(r#"[{{"kdamond_idx":0,"context_idx":0,"target_id":0,"snapshots":[{snapshot}]}}]"#)
            .into_bytes()
    };
    let most = "18446744073709551615";
    let numbers = [
        snapshot("0", most, "1"),
        snapshot(most, "0", most),
        snapshot("0", "4096", "1e400"),
        snapshot("-1", "4096", "-1"),
        b"[".repeat(1 << 20),
    ];
    for bytes in cut.into_iter().chain(overwritten).chain(numbers) {
        std::fs::write(&path, &bytes).unwrap();
        let done = bench(&["--millions", "1", "--trace", path.to_str().unwrap()]);
        let said = String::from_utf8(done.stderr).unwrap();
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
        // The readable part of a damaged record is played, with a message about the rest.
        let played = done.status.code() == Some(0) && !done.stdout.is_empty();
        let refused = done.status.code() == Some(2) && done.stdout.is_empty();
        assert!(played || refused, "{shown}: {:?} {said}", done.status);
        assert!(said.contains("odd.record") && said.len() < 2000, "{shown}: {said}");
    }
}

/// A result of `nearfar-bench balance` for kmeans, with this gain when each part is created by its own thread.
fn kept(gain: f64) -> String {
    let node = |id| serde_json::json!({ "id": id, "kind": "dram", "size_bytes": 1 << 30, "cpus": 1, "near": true });
    let row = |kind: &str, times: f64| {
        let traffic = serde_json::json!({ "local": 1.0, "imbalance": 0.0, "shares": [], "lines_per_us": 82.0 * times });
        serde_json::json!({ "kind": kind, "sensors": [], "command": "", "failed": null, "runs": [{
            "operations_per_s": 1e6 * times, "began_s": 0.0, "ended_s": 4.0, "windows": [], "moved_pages": 0,
            "balancing": null, "traffic": traffic,
        }] })
    };
    serde_json::json!({
        "schema": "nearfar.bench-balance/1", "nearfar": "0.1.0", "smoke": false, "node_of_cpu": [0, 1, 2, 3],
        "seconds": 14, "settle_s": 11, "huge": false, "times": 1,
        "machine": {
            "emulation": { "machine": "numa-4node", "clock": "virtual", "slow_motion": 1.0 },
            "kernel": "7.2.12", "cpus": 4, "nodes": [node(0), node(1), node(2), node(3)],
        },
        "programs": [{ "program": "kmeans", "rows": [
            row("first-touch", 1.0), row("interleave", gain * 0.75), row("local", gain), row("numa-balancing", gain),
        ] }],
    })
    .to_string()
}

#[test]
fn the_model_is_compared_with_results_of_the_lab() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kept.json");
    let said = |gain: f64| {
        std::fs::write(&file, kept(gain)).unwrap();
        let done = nearfar(&["dev", "sim-lab", file.to_str().unwrap(), "--json"]);
        (done.status.code(), serde_json::from_slice::<Value>(&done.stdout).unwrap())
    };
    let (status, found) = said(2.8);
    assert_eq!((status, &found["within"]), (Some(0), &true.into()), "{found}");
    let rows = found["cases"][0]["rows"].as_array().unwrap();
    let of =
        |at: usize| (rows[at]["row"].as_str().unwrap(), rows[at]["is_fitted"].as_bool().unwrap());
    // The kernel's own balancing is not modelled.
    assert_eq!(
        (0..rows.len()).map(of).collect::<Vec<_>>(),
        [("first touch", true), ("interleave", false), ("parallel first touch", true)]
    );
    // No CPU has this many outstanding cache lines.
    let (status, found) = said(5.5);
    assert_eq!((status, &found["within"]), (Some(1), &false.into()), "{found}");
}

#[test]
fn unsuitable_results_of_the_lab_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kept.json");
    for (text, said) in [
        ("{}".to_owned(), "nearfar.bench-balance/1"),
        (kept(2.0).replace("balance/1", "balance/9"), "balance/9"),
        (kept(2.0).replace("numa-4node", "numa-5node"), "numa-5node"),
        (kept(2.0).replace("first-touch", "node-3"), "first touch"),
    ] {
        std::fs::write(&file, &text).unwrap();
        let done = nearfar(&["dev", "sim-lab", file.to_str().unwrap()]);
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(2) && error.contains(said), "{error}");
        assert!(error.contains("kept.json") && done.stdout.is_empty(), "{error}");
    }
    assert_eq!(nearfar(&["dev", "sim-lab", "/nowhere"]).status.code(), Some(2));
}
