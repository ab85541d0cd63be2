//! A node of a cluster: containerd with nearfar's plugin, a kubelet that starts the pods of a directory, an image with redis.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::{BIN, MIB, anonymous, redis_of};
use crate::damon::wait;
use crate::inside::nearfar;

const IMAGE: &str = "docker.io/library/redis-lab:1";

/// Starts redis and fills it with the number of MiB in its first argument.
const SCRIPT: &str = r#"
redis-server --port 0 --unixsocket /tmp/redis --save "" --appendonly no --enable-debug-command yes &
until redis-cli -s /tmp/redis ping; do sleep 0.2; done
redis-cli -s /tmp/redis debug populate "$0" key 1048576
wait
"#;

pub(super) fn shell(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}\n{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Polls for up to two minutes.
pub(super) fn within_time<T>(mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..400 {
        if let Some(found) = poll() {
            return Some(found);
        }
        wait();
    }
    None
}

/// A layout of one image with redis, its libraries, and a shell, as `ctr images import` reads it.
fn image(dir: &Path) {
    let script = format!(
        r#"
mkdir -p {dir}/root/bin {dir}/root/tmp {dir}/root/proc {dir}/root/dev {dir}/root/sys {dir}/root/etc {dir}/layout/blobs/sha256
cd {dir}/root
cp /run/nearfar/busybox bin/busybox
for name in sh sleep cat; do ln -s busybox bin/$name; done
for program in redis-server redis-cli; do
  cp -L $(command -v $program) bin/
  for file in $(ldd $(command -v $program) | grep -o '/[^ ]*'); do mkdir -p .$(dirname $file); cp -nL $file .$file; done
done
tar -cf ../layer.tar .
"#,
        dir = dir.display()
    );
    shell(&script);
    let blob = |file: &Path| {
        let sum = shell(&format!("sha256sum < {}", file.display()));
        let sum = sum.split_whitespace().next().unwrap().to_owned();
        fs::copy(file, dir.join("layout/blobs/sha256").join(&sum)).unwrap();
        (format!("sha256:{sum}"), fs::metadata(file).unwrap().len())
    };
    let json = |name: &str, value: &Value| {
        let file = dir.join(name);
        fs::write(&file, value.to_string()).unwrap();
        file
    };
    let (layer, layer_size) = blob(&dir.join("layer.tar"));
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/bin/sh", "-c", "sleep 1000000"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer]},
    });
    let (config, config_size) = blob(&json("config.json", &config));
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": config_size},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer, "size": layer_size}],
    });
    let (manifest, size) = blob(&json("manifest.json", &manifest));
    let index = json!({
        "schemaVersion": 2,
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": manifest,
            "size": size,
            "annotations": {"io.containerd.image.name": IMAGE, "org.opencontainers.image.ref.name": "1"},
        }],
    });
    fs::copy(json("index.json", &index), dir.join("layout/index.json")).unwrap();
    json("layout/oci-layout", &json!({"imageLayoutVersion": "1.0.0"}));
    shell(&format!("tar -cf {0}/image.tar -C {0}/layout .", dir.display()));
}

/// A program that runs until this is dropped, with its output in a file.
pub(super) struct Service {
    child: Child,
    log: PathBuf,
}

impl Service {
    pub(super) fn start(mut command: Command, log: PathBuf) -> Self {
        let file = fs::File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Self { child: command.spawn().unwrap(), log }
    }

    pub(super) fn text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for a line with all of `parts`.
    pub(super) fn line(&self, parts: &[&str]) -> String {
        let line = || {
            let text = self.text();
            let mut lines = text.lines();
            let found = lines.find(|line| parts.iter().all(|part| line.contains(part)));
            found.map(str::to_owned)
        };
        let found = within_time(line);
        assert!(found.is_some(), "no line with {parts:?} in:\n{}", self.text());
        found.unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        for _ in 0..40 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            wait();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node: dropped in the order of its fields.
pub(super) struct Node {
    pub(super) kubelet: Service,
    pub(super) nri: Service,
    #[expect(dead_code, reason = "it runs as long as the node")]
    containerd: Service,
    pub(super) dir: PathBuf,
}

/// Versions of containerd and runc, as files below [`BIN`].
pub(super) struct Versions {
    pub(super) containerd: &'static str,
    pub(super) runc: &'static str,
}

pub(super) const CURRENT: Versions = Versions { containerd: "containerd", runc: "runc" };

impl Node {
    pub(super) fn start(name: &str, versions: &Versions, plugin: &[&str]) -> Self {
        let dir = PathBuf::from("/tmp/pods").join(name);
        let bin = PathBuf::from(std::env::var_os(BIN).expect("make kubernetes sets it"));
        for part in ["", "run", "cni", "manifests", "kubelet", "logs"] {
            fs::create_dir_all(dir.join(part)).unwrap();
        }
        // Layers lie upon each other: the guest's root has them already, a new file system has none.
        shell(&format!("mount -t tmpfs pods {}/run", dir.display()));
        interface();
        image(&dir.join("run"));
        let socket = dir.join("run/containerd.sock");
        println!("{name}: image made");
        let containerd = containerd(&dir, &bin, versions);
        let up = within_time(|| socket.exists().then_some(()));
        assert!(up.is_some(), "{}", containerd.text());
        let import = format!(
            "{}/ctr -a {} -n k8s.io images import {}/run/image.tar",
            bin.display(),
            socket.display(),
            dir.display()
        );
        let imported = within_time(|| {
            Command::new("sh")
                .args(["-c", &import])
                .output()
                .unwrap()
                .status
                .success()
                .then_some(())
        });
        assert!(imported.is_some(), "{}", containerd.text());
        let mut nri = nearfar(&["nri", "--socket", dir.join("run/nri.sock").to_str().unwrap()]);
        nri.args(plugin).args(["--metrics-file", dir.join("nri.prom").to_str().unwrap()]);
        let nri = Service::start(nri, dir.join("nri.log"));
        nri.line(&["event=configured"]);
        println!("{name}: containerd and plugin are up");
        let kubelet = kubelet(&dir, &bin, &socket);
        Self { kubelet, nri, containerd, dir }
    }

    /// Starts a pod with `annotations`; `resources` are its requests and limits, and `mib` the size of its data.
    pub(super) fn pod(&self, name: &str, annotations: &Value, resources: &Value, mib: u64) {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": annotations},
            "spec": {
                "hostNetwork": true,
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "redis",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": ["/bin/sh", "-c", SCRIPT, mib.to_string()],
                    "env": [{"name": "POD", "value": name}],
                    "resources": resources,
                }],
            },
        });
        // The kubelet reads the directory at any time, so the file comes whole.
        let (temporary, file) = (self.dir.join(name), self.manifest(name));
        fs::write(&temporary, pod.to_string()).unwrap();
        fs::rename(temporary, file).unwrap();
    }

    fn manifest(&self, name: &str) -> PathBuf {
        self.dir.join("manifests").join(format!("{name}.json"))
    }

    pub(super) fn remove(&self, name: &str) {
        fs::remove_file(self.manifest(name)).unwrap();
    }

    /// The redis of a pod, once it holds `mib` of data.
    pub(super) fn redis(&self, name: &str, mib: u64) -> u32 {
        let filled =
            || redis_of(name).filter(|pid| anonymous(*pid).values().sum::<u64>() >= mib * MIB);
        let found = within_time(filled);
        let (pid, nri) = (redis_of(name), self.nri.text());
        let pages = pid.map(anonymous);
        let log = shell(&format!(
            "cat {}/logs/default_{name}-lab_*/redis/*.log || true",
            self.dir.display()
        ));
        assert!(
            found.is_some(),
            "{name}: {pid:?} {pages:?}\n{log}\n{nri}\n{}",
            tail(&self.kubelet)
        );
        found.unwrap()
    }

    /// The result of the plugin's verification of a pod's container.
    pub(super) fn verified(&self, name: &str) -> String {
        let pod = format!("pod=default/{name}-lab ");
        self.nri.line(&["event=verified", &pod])
    }
}

fn tail(service: &Service) -> String {
    let text = service.text();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// The kubelet wants an address other than that of the loopback.
fn interface() {
    shell(
        "modprobe dummy && b=/run/nearfar/busybox
         $b ip link show nearfar0 2> /dev/null || $b ip link add nearfar0 type dummy
         $b ip addr show nearfar0 | grep -q 10.88.0.1 || $b ip addr add 10.88.0.1/24 dev nearfar0
         $b ip link set nearfar0 up
         $b ip route show | grep -q default || $b ip route add default via 10.88.0.2",
    );
}

fn containerd(dir: &Path, bin: &Path, versions: &Versions) -> Service {
    let config = format!(
        r#"
version = 3
root = "{0}/run/root"
state = "{0}/run/state"
[grpc]
  address = "{0}/run/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{0}/run/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  plugin_request_timeout = "30s"
  socket_path = "{0}/run/nri.sock"
  plugin_path = "{0}/run/plugins"
  plugin_config_path = "{0}/run/conf.d"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{IMAGE}"
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{0}/cni"]
  conf_dir = "{0}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    BinaryName = "{1}"
"#,
        dir.display(),
        bin.join(versions.runc).display()
    );
    fs::write(dir.join("containerd.toml"), config).unwrap();
    let program = bin.join(versions.containerd);
    let mut command = Command::new(&program);
    command.arg("-c").arg(dir.join("containerd.toml"));
    // It finds its shim by PATH.
    let beside = program.parent().unwrap().display();
    let path = format!("{beside}:{}", std::env::var("PATH").unwrap_or_default());
    command.env("PATH", path);
    Service::start(command, dir.join("containerd.log"))
}

fn kubelet(dir: &Path, bin: &Path, socket: &Path) -> Service {
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": "127.0.0.1",
        "readOnlyPort": 0,
        "healthzPort": 0,
        "cgroupDriver": "cgroupfs",
        "failSwapOn": false,
        "staticPodPath": dir.join("manifests"),
        "podLogsDir": dir.join("logs"),
        "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
        "localStorageCapacityIsolation": false,
        "fileCheckFrequency": "1s",
        "evictionHard": {"memory.available": "100Mi"},
        "systemReserved": {"memory": "100Mi"},
        // It reserves near memory by node, and keeps Guaranteed pods there.
        "memoryManagerPolicy": "Static",
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "200Mi"}}],
    });
    fs::write(dir.join("kubelet.json"), config.to_string()).unwrap();
    let mut command = Command::new(bin.join("kubelet"));
    command.arg("--config").arg(dir.join("kubelet.json"));
    command.arg("--root-dir").arg(dir.join("kubelet"));
    command.args(["--hostname-override", "lab", "--node-ip", "10.88.0.1"]);
    Service::start(command, dir.join("kubelet.log"))
}
