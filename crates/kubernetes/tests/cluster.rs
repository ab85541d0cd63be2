//! Publication against an API server of a few lines: it keeps objects by path, without any checks. tests/apiserver.rs runs
//! the real one.

#![expect(clippy::unwrap_used, reason = "this is a test program")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use nearfar_kubernetes::devices::{Reserves, devices};
use nearfar_kubernetes::objects::labels;
use nearfar_kubernetes::publish::{Cluster, Published, Withdrawn};
use nearfar_topology::{Topology, testkit};
use serde_json::{Value, json};

/// Objects by path, and the requests that changed some.
#[derive(Clone, Default)]
struct Server {
    objects: Arc<Mutex<BTreeMap<String, Value>>>,
    writes: Arc<Mutex<Vec<String>>>,
}

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const NODE: &str = "/api/v1/nodes/worker";

impl Server {
    /// Starts it; the kubeconfig that leads to it.
    fn start(&self, dir: &std::path::Path) -> PathBuf {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                server.answer(stream.unwrap());
            }
        });
        kubeconfig(dir, &format!("http://{address}"))
    }

    fn answer(&self, mut stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        let (mut line, mut length) = (String::new(), 0);
        lines.read_line(&mut line).unwrap();
        loop {
            let mut header = String::new();
            lines.read_line(&mut header).unwrap();
            if header.trim().is_empty() {
                break;
            }
            let header = header.to_lowercase();
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        lines.read_exact(&mut body).unwrap();
        let mut words = line.split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let path = target.split('?').next().unwrap();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let (status, answer) = match self.done(method, path, body) {
            Some(answer) => ("200 OK", answer),
            None => (
                "404 Not Found",
                json!({"kind": "Status", "status": "Failure", "code": 404, "message": "not found", "reason": "NotFound"}),
            ),
        };
        let text = answer.to_string();
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n");
        stream
            .write_all(format!("{head}Content-Length: {}\r\n\r\n{text}", text.len()).as_bytes())
            .unwrap();
    }

    fn done(&self, method: &str, path: &str, mut body: Value) -> Option<Value> {
        let mut objects = self.objects.lock().unwrap();
        if method != "GET" {
            self.writes.lock().unwrap().push(format!("{method} {path}"));
        }
        match method {
            "GET" if path == SLICES => {
                let slices = objects.iter().filter(|(path, _)| path.starts_with(SLICES));
                let items: Vec<_> = slices.map(|(_, slice)| slice.clone()).collect();
                Some(
                    json!({"kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1", "metadata": {}, "items": items}),
                )
            }
            "GET" => objects.get(path).cloned(),
            "DELETE" => objects.remove(path),
            "POST" => {
                let name =
                    format!("{}{}", body["metadata"]["generateName"].as_str()?, objects.len());
                body["metadata"]["name"] = name.clone().into();
                body["metadata"]["resourceVersion"] = "1".into();
                objects.insert(format!("{path}/{name}"), body.clone());
                Some(body)
            }
            "PATCH" => {
                let object = objects.get_mut(path)?;
                for (key, value) in body["metadata"]["labels"].as_object()? {
                    let labels = object["metadata"]["labels"].as_object_mut()?;
                    if value.is_null() {
                        labels.remove(key)
                    } else {
                        labels.insert(key.clone(), value.clone())
                    };
                }
                Some(object.clone())
            }
            _ => {
                objects.insert(path.into(), body.clone());
                Some(body)
            }
        }
    }

    fn take_writes(&self) -> Vec<String> {
        std::mem::take(&mut self.writes.lock().unwrap())
    }
}

fn kubeconfig(dir: &std::path::Path, server: &str) -> PathBuf {
    let path = dir.join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

async fn publish(cluster: &Cluster, machine: &Topology) -> Published {
    let devices = devices(machine, &Reserves::new());
    cluster.publish("worker", &devices, &labels(machine)).await.unwrap()
}

#[tokio::test]
async fn slices_and_labels_are_written_if_they_differ_and_withdrawn_without_a_rest() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::default();
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "worker", "uid": "u", "labels": {"zone": "a", "nearfar.io/hbm": "true"}}});
    server.objects.lock().unwrap().insert(NODE.into(), node.clone());
    let config = server.start(dir.path());
    let cluster = Cluster::new(Some(&config)).await.unwrap();
    let machine = testkit::dram_and_cxl();
    let first = publish(&cluster, &machine).await;
    let expected = Published { devices: 2, generation: 1, slices_changed: 1, labels_changed: true };
    assert_eq!(first, expected);
    let slice = format!("{SLICES}/worker-memory.nearfar.io-1");
    assert_eq!(server.take_writes(), [format!("POST {SLICES}"), format!("PATCH {NODE}")]);
    let labels = server.objects.lock().unwrap()[NODE]["metadata"]["labels"].clone();
    let known = json!({"zone": "a", "nearfar.io/dram": "true", "nearfar.io/cxl": "true", "nearfar.io/tiers": "2",
        "nearfar.io/near-memory": "16Gi", "nearfar.io/far-memory": "8Gi"});
    assert_eq!(labels, known);
    // Another round, also of a restarted driver, writes nothing.
    let again = publish(&Cluster::new(Some(&config)).await.unwrap(), &machine).await;
    assert_eq!((again.generation, again.slices_changed, again.labels_changed), (1, 0, false));
    assert_eq!(server.take_writes(), [""; 0]);
    // A node goes offline: the slice is replaced under a higher generation.
    let less = testkit::machine([testkit::node(0).cpus(0..4).gib(16)]);
    assert_eq!(publish(&cluster, &less).await.generation, 2);
    assert_eq!(server.take_writes(), [format!("PUT {slice}"), format!("PATCH {NODE}")]);
    // More devices than fit into a slice, and back.
    let many = testkit::machine((0..130).map(testkit::node));
    assert_eq!(publish(&cluster, &many).await.slices_changed, 2);
    assert_eq!(publish(&cluster, &many).await.slices_changed, 0);
    assert_eq!(publish(&cluster, &less).await.slices_changed, 2);
    let done = cluster.withdraw(Some("worker")).await.unwrap();
    assert_eq!(done, Withdrawn { slices: 1, nodes: 1 });
    let objects = server.objects.lock().unwrap().clone();
    assert_eq!(objects.keys().collect::<Vec<_>>(), [NODE]);
    assert_eq!(objects[NODE]["metadata"]["labels"], json!({"zone": "a"}));
    assert_eq!(cluster.withdraw(Some("worker")).await.unwrap(), Withdrawn::default());
}

#[tokio::test]
async fn an_unknown_node_and_a_missing_api_server_are_errors_with_their_name() {
    let dir = tempfile::tempdir().unwrap();
    let config = Server::default().start(dir.path());
    let cluster = Cluster::new(Some(&config)).await.unwrap();
    let why = cluster.publish("worker", &[], &labels(&testkit::dram_and_cxl())).await.unwrap_err();
    assert_eq!(why.to_string(), "can't read node worker: not found (status 404)");
    assert_eq!(cluster.claim("shop", "data").await.unwrap(), None);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = kubeconfig(dir.path(), &format!("http://{closed}"));
    let cluster = Cluster::new(Some(&config)).await.unwrap();
    let why = cluster.claim("shop", "data").await.unwrap_err().to_string();
    assert!(
        why.starts_with("can't read resource claim shop/data: ") && why.contains("refused"),
        "{why}"
    );
    for text in ["", "[", "apiVersion: v1"] {
        std::fs::write(&config, text).unwrap();
        let why = Cluster::new(Some(&config)).await.map(|_| ()).unwrap_err().to_string();
        assert!(why.contains("kubeconfig") && why.contains("--kubeconfig"), "{text}: {why}");
    }
}
