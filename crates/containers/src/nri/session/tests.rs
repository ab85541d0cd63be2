//! A whole connection of the plugin: a runtime that speaks NRI over a unix socket, but has no containers.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use crate::annotations::Classes;
use crate::nri::fake::Fake;
use crate::nri::frame::{self, PLUGIN, RUNTIME};
use crate::nri::messages as nri;
use crate::nri::plugin::{OnMismatch, Plugin, Settings};
use crate::nri::session::{self, SessionError};
use crate::nri::ttrpc::{self, Message, REQUEST, RESPONSE, Request, Response, Status};
use prost::Message as _;

type Plugged = JoinHandle<(Result<(), SessionError>, Fake)>;

/// The runtime's end of a connection.
struct Runtime {
    stream: UnixStream,
    frames: frame::Reader,
    /// Messages of each connection that came before they were waited for.
    came: Vec<(u32, Message)>,
    readers: [ttrpc::Reader; 2],
    stream_next: u32,
}

/// Starts the plugin in a thread, connected to the runtime.
fn plugged() -> (Runtime, Plugged) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let plugged = std::thread::spawn(move || {
        let mut stream = theirs;
        let mut host = Fake::new();
        host.fs.plant(&[("proc/7/numa_maps".into(), "7f00 default anon=1 N0=1\n")]);
        let mut plugin = Plugin::new(Settings {
            name: "nearfar".into(),
            index: 7,
            on_mismatch: OnMismatch::Evict,
            classes: Classes::new(),
            library: None,
            cdi_dir: String::new(),
        });
        (session::run(&mut stream, &mut plugin, &mut host), host)
    });
    let readers = Default::default();
    let frames = frame::Reader::default();
    (Runtime { stream: ours, frames, came: Vec::new(), readers, stream_next: 1 }, plugged)
}

impl Runtime {
    /// The next message of a connection.
    fn receive(&mut self, connection: u32) -> Message {
        loop {
            if let Some(at) = self.came.iter().position(|(of, _)| *of == connection) {
                return self.came.remove(at).1;
            }
            let mut buffer = [0; 777];
            let read = self.stream.read(&mut buffer).unwrap();
            assert!(read > 0, "the plugin closed the connection");
            for frame in self.frames.add(&buffer[..read]).unwrap() {
                let reader = &mut self.readers[frame.connection as usize - 1];
                let came = reader.add(&frame.payload).unwrap();
                self.came.extend(came.into_iter().map(|message| (frame.connection, message)));
            }
        }
    }

    fn send(&mut self, connection: u32, message: &Message) {
        let mut out = Vec::new();
        frame::write(&mut out, connection, &message.bytes().unwrap());
        self.stream.write_all(&out).unwrap();
    }

    /// Takes the plugin's call of the runtime, and answers it.
    fn called(&mut self, status: Option<Status>) -> Request {
        let message = self.receive(RUNTIME);
        assert_eq!((message.kind, message.stream % 2), (REQUEST, 1));
        let payload = Response { status, payload: Vec::new() }.encode_to_vec();
        let kind = RESPONSE;
        self.send(RUNTIME, &Message { stream: message.stream, kind, flags: 0, payload });
        Request::decode(&message.payload[..]).unwrap()
    }

    /// Calls the plugin.
    fn call(&mut self, method: &str, argument: &impl prost::Message) -> Response {
        let (service, method) = (nri::PLUGIN_SERVICE.into(), method.into());
        let payload = argument.encode_to_vec();
        let request = Request { service, method, payload, timeout_nano: 2_000_000_000 };
        let stream = self.stream_next;
        self.stream_next += 2;
        let payload = request.encode_to_vec();
        self.send(PLUGIN, &Message { stream, kind: REQUEST, flags: 0, payload });
        let answer = self.receive(PLUGIN);
        assert_eq!((answer.kind, answer.stream), (RESPONSE, stream));
        Response::decode(&answer.payload[..]).unwrap()
    }

    fn configure(&mut self, version: &str) {
        let nri_version = version.into();
        let request = nri::ConfigureRequest { nri_version, ..nri::ConfigureRequest::default() };
        let answer = self.call("Configure", &request);
        let events = nri::ConfigureResponse::decode(&answer.payload[..]).unwrap().events;
        assert_eq!(events, 8 | 64 | 512 | 1024);
        let none = nri::SynchronizeRequest::default();
        assert_eq!(self.call("Synchronize", &none).status, None);
    }
}

fn container(kind: &str) -> nri::CreateContainerRequest {
    let annotations = [("nearfar.io/memory".to_string(), kind.to_string())].into();
    let pod = Some(nri::PodSandbox { annotations, ..nri::PodSandbox::default() });
    // A large environment, so that the call has several frames.
    let env = vec![format!("LONG={}", "x".repeat(20_000))];
    let (id, name) = ("c1".into(), "db".into());
    let container = nri::Container { id, name, env, pid: 7, ..nri::Container::default() };
    nri::CreateContainerRequest { pod, container: Some(container) }
}

#[test]
fn a_container_is_placed_verified_and_evicted() {
    let (mut runtime, plugged) = plugged();
    let register = runtime.called(None);
    assert_eq!(register.method, "RegisterPlugin");
    let register = nri::RegisterPluginRequest::decode(&register.payload[..]).unwrap();
    assert_eq!((register.plugin_name.as_str(), register.plugin_idx.as_str()), ("nearfar", "07"));
    runtime.configure("v0.12.3");

    let answer = runtime.call("CreateContainer", &container("prefer:far"));
    let adjust = nri::CreateContainerResponse::decode(&answer.payload[..]).unwrap().adjust.unwrap();
    let policy = adjust.linux.unwrap().memory_policy.unwrap();
    assert_eq!((policy.mode, policy.nodes.as_str()), (1, "1"));

    let refused = runtime.call("CreateContainer", &container("hbm")).status.unwrap();
    assert!(refused.message.contains("nearfar.io/memory=hbm"), "{refused:?}");

    assert_eq!(runtime.call("PostStartContainer", &container("far")).status, None);
    let failure = Status { code: 2, message: "not implemented".into() };
    let evict = runtime.called(Some(failure));
    let evict = nri::UpdateContainersRequest::decode(&evict.payload[..]).unwrap();
    assert_eq!(evict.evict[0].container_id, "c1");

    assert_eq!(runtime.call("Shutdown", &nri::Empty {}).status, None);
    let (ended, host) = plugged.join().unwrap();
    ended.unwrap();
    assert_eq!(host.ended, [7]);
    let lines = host.lines.join("\n");
    for part in
        ["event=configured", "event=adjusted", "event=refused", "result=wrong", "event=call_failed"]
    {
        assert!(lines.contains(part), "{part}: {lines}");
    }
}

#[test]
fn an_old_runtime_gets_a_cpuset_by_state_changes() {
    let (mut runtime, plugged) = plugged();
    runtime.called(None);
    runtime.configure("");
    let answer = runtime.call("CreateContainer", &container("far"));
    let adjust = nri::CreateContainerResponse::decode(&answer.payload[..]).unwrap().adjust.unwrap();
    assert_eq!(adjust.linux.unwrap().resources.unwrap().cpu.unwrap().mems, "1");
    let request = container("far");
    let event = nri::StateChangeEvent { event: 7, pod: request.pod, container: request.container };
    assert_eq!(runtime.call("StateChange", &event).status, None);
    drop(runtime);
    let (ended, host) = plugged.join().unwrap();
    assert!(matches!(ended, Err(SessionError::Closed { configured: true })), "{ended:?}");
    // The fake process has no status file.
    assert!(host.lines.iter().any(|line| line.contains("result=unknown")), "{:?}", host.lines);
}

#[test]
fn a_refused_registration_has_the_runtimes_reason() {
    let (mut runtime, plugged) = plugged();
    runtime.called(Some(Status { code: 2, message: "plugins are disabled".into() }));
    let error = plugged.join().unwrap().0.unwrap_err().to_string();
    assert!(error.contains("RegisterPlugin: plugins are disabled"), "{error}");
}

#[test]
fn malformed_bytes_end_the_connection_with_an_error() {
    let call = |payload: &[u8]| {
        let message = Message { stream: 1, kind: REQUEST, flags: 0, payload: payload.to_vec() };
        let mut out = Vec::new();
        frame::write(&mut out, PLUGIN, &message.bytes().unwrap());
        out
    };
    for (bytes, part) in [
        (vec![0, 0, 0, 1, 0xff, 0, 0, 0], "larger than any"),
        (
            vec![0, 0, 0, 1, 0, 0, 0, 10, 0xff, 0, 0, 0, 0, 0, 0, 1, 1, 0],
            "larger than ttrpc permits",
        ),
        (call(&[0x0a, 0x7f]), "not understood"),
    ] {
        let (mut runtime, plugged) = plugged();
        runtime.called(None);
        runtime.stream.write_all(&bytes).unwrap();
        let error = plugged.join().unwrap().0.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let (runtime, plugged) = plugged();
    drop(runtime);
    let error = plugged.join().unwrap().0.unwrap_err();
    assert!(matches!(error, SessionError::Closed { configured: false } | SessionError::Io(_)));
}
