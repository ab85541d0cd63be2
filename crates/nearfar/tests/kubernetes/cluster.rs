//! A cluster without nodes: etcd and kube-apiserver on loopback, in a temporary directory, ended with the test.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};
use tonic::codegen::http::Request;

pub(crate) const DRIVER: &str = "memory.nearfar.io";
const ADMIN: &str = "admin-of-the-test";
const SCHEDULER: &str = "scheduler-of-the-test";
/// Tries of a wait, 100 ms apart.
const TRIES: usize = 600;

/// A process that is killed with its value.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command, log: &Path) -> Self {
        let log = File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self(command.spawn().unwrap())
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.0.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Its processes end in the order of the fields.
pub(crate) struct Cluster {
    scheduler: Option<Process>,
    _server: Option<Process>,
    _etcd: Option<Process>,
    client: Client,
    dir: PathBuf,
    url: String,
}

fn program(name: &str) -> PathBuf {
    let dir = std::env::var_os("NEARFAR_KUBERNETES_BIN").expect("NEARFAR_KUBERNETES_BIN is unset");
    Path::new(&dir).join(name)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Makes a certificate authority, a server's certificate and a key for tokens.
fn certificates(dir: &Path) {
    let openssl = |arguments: &str| {
        let output = Command::new("openssl").args(arguments.split(' ')).current_dir(dir).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    std::fs::write(dir.join("san"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    openssl(
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=test-ca",
    );
    openssl("req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=apiserver");
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile san -out server.crt",
    );
    openssl("genrsa -out tokens.key 2048");
}

/// A node as kubelet registers it.
pub(crate) fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"zone": "a"}}})
}

impl Cluster {
    /// Starts etcd, then the API server, and the scheduler if there is one.
    pub(crate) async fn start(dir: &Path) -> Self {
        certificates(dir);
        let (client, peer, port) = (free_port(), free_port(), free_port());
        let (client, peer) =
            (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let mut command = Command::new(program("etcd"));
        command.arg(format!("--data-dir={}", dir.join("etcd").display()));
        for option in ["listen-client-urls", "advertise-client-urls"] {
            command.arg(format!("--{option}={client}"));
        }
        for option in ["listen-peer-urls", "initial-advertise-peer-urls"] {
            command.arg(format!("--{option}={peer}"));
        }
        command.arg(format!("--initial-cluster=default={peer}"));
        let etcd = Process::start(&mut command, &dir.join("etcd.log"));
        let users =
            format!("{ADMIN},admin,1,system:masters\n{SCHEDULER},system:kube-scheduler,2,\n");
        std::fs::write(dir.join("users.csv"), users).unwrap();
        let mut command = Command::new(program("kube-apiserver"));
        command.current_dir(dir).args([
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--cert-dir=certificates",
            "--tls-cert-file=server.crt",
            "--tls-private-key-file=server.key",
            "--service-account-issuer=https://nearfar.test",
            "--service-account-key-file=tokens.key",
            "--service-account-signing-key-file=tokens.key",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            "--token-auth-file=users.csv",
        ]);
        command.arg(format!("--etcd-servers={client}")).arg(format!("--secure-port={port}"));
        let server = Process::start(&mut command, &dir.join("apiserver.log"));
        let url = format!("https://127.0.0.1:{port}");
        let admin = connected(&kubeconfig(dir, "admin", &url, ADMIN)).await;
        let mut cluster = Self {
            scheduler: None,
            _server: Some(server),
            _etcd: Some(etcd),
            client: admin,
            dir: dir.into(),
            url,
        };
        cluster.started().await;
        if program("kube-scheduler").is_file() {
            let config = kubeconfig(dir, "scheduler", &cluster.url, SCHEDULER);
            let mut command = Command::new(program("kube-scheduler"));
            command.current_dir(dir).args(["--leader-elect=false", "--secure-port=0"]);
            command.arg(format!("--kubeconfig={}", config.display()));
            cluster.scheduler = Some(Process::start(&mut command, &dir.join("scheduler.log")));
        }
        cluster
    }

    /// Waits until the API server is ready.
    async fn started(&self) {
        for _ in 0..TRIES {
            let request = Request::get("/readyz").body(Vec::new()).unwrap();
            if self.client.request_text(request).await.is_ok_and(|text| text == "ok") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{}", std::fs::read_to_string(self.dir.join("apiserver.log")).unwrap());
    }

    async fn send(&self, request: Request<Vec<u8>>) -> Result<Value, String> {
        self.client.request(request).await.map_err(|error| error.to_string())
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.send(Request::get(path).body(Vec::new()).unwrap()).await.unwrap()
    }

    /// Reads an object until it is as wanted.
    pub(crate) async fn wait(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        for _ in 0..TRIES {
            let read = self.send(Request::get(path).body(Vec::new()).unwrap()).await;
            last = read.unwrap_or_default();
            if wanted(&last) {
                return last;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{path} stays {last:#}");
    }

    pub(crate) async fn try_create(&self, path: &str, object: &Value) -> Result<Value, String> {
        let request = Request::post(path).header("content-type", "application/json");
        self.send(request.body(object.to_string().into_bytes()).unwrap()).await
    }

    pub(crate) async fn create(&self, path: &str, object: &Value) -> Value {
        self.try_create(path, object).await.unwrap()
    }

    async fn patch(&self, path: &str, patch: &Value) {
        let request = Request::patch(path).header("content-type", "application/merge-patch+json");
        self.send(request.body(patch.to_string().into_bytes()).unwrap()).await.unwrap();
    }

    /// Gives a node the status of one that can run pods.
    pub(crate) async fn ready(&self, node: &str) {
        let sizes = json!({"cpu": "8", "memory": "64Gi", "pods": "100"});
        let conditions =
            json!([{"type": "Ready", "status": "True", "reason": "Test", "message": ""}]);
        let status =
            json!({"status": {"capacity": sizes, "allocatable": sizes, "conditions": conditions}});
        self.patch(&format!("/api/v1/nodes/{node}/status"), &status).await;
        // The API server adds it to new nodes; the node controller would remove it.
        self.patch(&format!("/api/v1/nodes/{node}"), &json!({"spec": {"taints": null}})).await;
    }

    /// The driver's account, with the chart's rights and admission policy; the kubeconfig with a token as a pod on the node
    /// `worker` has it.
    pub(crate) async fn install(&self, rbac: &str, admission: &str) -> PathBuf {
        let named = |name: &str| json!({"name": name});
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": named("nearfar")});
        self.create("/api/v1/namespaces", &namespace).await;
        // The API server makes it after it is ready.
        self.wait("/api/v1/namespaces/default", |namespace| namespace["metadata"].is_object())
            .await;
        for namespace in ["nearfar", "default"] {
            let account = if namespace == "nearfar" { "nearfar" } else { "default" };
            let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
            let account =
                json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named(account)});
            self.create(&path, &account).await;
        }
        let group = "/apis/rbac.authorization.k8s.io/v1";
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": named("nearfar"), "rules": rules(rbac)});
        self.create(&format!("{group}/clusterroles"), &role).await;
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": named("nearfar"),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "nearfar"},
            "subjects": [{"kind": "ServiceAccount", "name": "nearfar", "namespace": "nearfar"}]});
        self.create(&format!("{group}/clusterrolebindings"), &binding).await;
        self.admit(admission).await;
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": named("dra"),
            "spec": {"nodeName": "worker", "serviceAccountName": "nearfar", "containers": [{"name": "dra", "image": "nearfar"}]}});
        let pod = self.create("/api/v1/namespaces/nearfar/pods", &pod).await;
        let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "dra", "uid": pod["metadata"]["uid"]});
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": 3600, "boundObjectRef": bound}});
        let token =
            self.create("/api/v1/namespaces/nearfar/serviceaccounts/nearfar/token", &request).await;
        kubeconfig(&self.dir, "driver", &self.url, token["status"]["token"].as_str().unwrap())
    }

    /// Creates the chart's admission policy and waits until it is in force.
    async fn admit(&self, text: &str) {
        let text = text.replace("{{ .Release.Namespace }}", "nearfar");
        let rule = |group: &str, operations: &[&str], resource: &str| json!({"apiGroups": [group], "apiVersions": ["*"], "operations": operations, "resources": [resource]});
        let variables: Vec<_> = ["userNode", "target", "targetNode"]
            .map(|name| json!({"name": name, "expression": expression(&text, name)}))
            .into();
        let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "nearfar-own-node"},
            "spec": {"failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [
                    rule("resource.k8s.io", &["CREATE", "UPDATE", "DELETE"], "resourceslices"), rule("", &["UPDATE"], "nodes")]},
                "matchConditions": [{"name": "is-driver", "expression": expression(&text, "is-driver")}],
                "variables": variables,
                "validations": [
                    {"expression": "variables.userNode != \"\""},
                    {"expression": "variables.userNode == variables.targetNode", "messageExpression": value(&text, "messageExpression: ")}]}});
        let group = "/apis/admissionregistration.k8s.io/v1";
        let created = self.create(&format!("{group}/validatingadmissionpolicies"), &policy).await;
        let path = format!("{group}/validatingadmissionpolicies/nearfar-own-node");
        assert!(created["metadata"]["uid"].is_string(), "{path}");
        let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "nearfar-own-node"}, "spec": {"policyName": "nearfar-own-node", "validationActions": ["Deny"]}});
        self.create(&format!("{group}/validatingadmissionpolicybindings"), &binding).await;
    }

    /// The cluster with the driver's rights.
    pub(crate) async fn as_driver(&self, kubeconfig: &Path) -> Self {
        let client = connected(kubeconfig).await;
        let (dir, url) = (self.dir.clone(), self.url.clone());
        Self { scheduler: None, _server: None, _etcd: None, client, dir, url }
    }

    pub(crate) fn has_scheduler(&self) -> bool {
        self.scheduler.is_some()
    }

    /// Has the scheduler allocate a claim, for a pod that uses it.
    pub(crate) async fn schedule(&self, claim: &str) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": claim},
            "spec": {"resourceClaims": [{"name": "memory", "resourceClaimName": claim}],
                "containers": [{"name": "c", "image": "redis", "resources": {"claims": [{"name": "memory"}]}}]}});
        self.create("/api/v1/namespaces/default/pods", &pod).await;
        let path = format!("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{claim}");
        self.wait(&path, |claim| claim["status"]["reservedFor"].is_array()).await;
    }

    /// Allocates a claim as the scheduler does.
    pub(crate) async fn allocate(&self, path: &str, device: &str, size: &str) {
        let claim = self.get(path).await;
        let config = json!([{"source": "FromClaim", "opaque": claim["spec"]["devices"]["config"][0]["opaque"]}]);
        let result = json!({"request": "far", "driver": DRIVER, "pool": "worker", "device": device,
            "shareID": "7d2e3a1c-0000-4000-8000-000000000001", "consumedCapacity": {"memory": size}});
        let allocation = json!({"devices": {"results": [result], "config": config}});
        self.patch(&format!("{path}/status"), &json!({"status": {"allocation": allocation}})).await;
    }
}

/// The rules of a role in YAML, in the chart's form: three lines each.
fn rules(text: &str) -> Vec<Value> {
    let words = |line: &str| -> Vec<String> {
        let list = line.split(['[', ']']).nth(1).unwrap();
        list.split(", ").map(|word| word.trim_matches('"').to_string()).collect()
    };
    let lines: Vec<&str> = text.lines().collect();
    let is_rule = |three: &&[&str]| three[0].trim_start().starts_with("- apiGroups: ");
    let rule = |three: &[&str]| json!({"apiGroups": words(three[0]), "resources": words(three[1]), "verbs": words(three[2])});
    let rules: Vec<_> = lines.windows(3).filter(is_rule).map(rule).collect();
    assert_eq!(rules.len(), 3, "{rules:?}");
    rules
}

/// The rest of the line after `key`, without YAML's quotes.
fn value(text: &str, key: &str) -> String {
    let rest = text.split(key).nth(1).unwrap().lines().next().unwrap();
    let quoted = rest.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
    quoted.unwrap_or(rest).to_string()
}

/// The expression below `- name: NAME`.
fn expression(text: &str, name: &str) -> String {
    value(text.split(&format!("- name: {name}\n")).nth(1).unwrap(), "expression: ")
}

fn kubeconfig(dir: &Path, name: &str, server: &str, token: &str) -> PathBuf {
    let path = dir.join(format!("{name}.kubeconfig"));
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": dir.join("ca.crt")}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

async fn connected(kubeconfig: &Path) -> Client {
    let file = kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(file, &options).await.unwrap();
    Client::try_from(config).unwrap()
}
