//! The server over TLS, with certificates created by the openssl command for each test.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use super::{AT_REST, Client, config, dial, item, refused, serve, socket, soon, value, waits};
use crate::server::{Config, Server, Tls};

type TlsClient = Client<StreamOwned<ClientConnection, TcpStream>>;

/// A directory with a root, and certificates issued by it.
struct Issuer(TempDir);

fn openssl(dir: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(dir)
        .output()
        .unwrap_or_else(|error| panic!("openssl: {error}; apt-get install openssl"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

impl Issuer {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        openssl(
            dir.path(),
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=root -keyout root.key \
             -out root.pem -addext keyUsage=keyCertSign",
        );
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes `<name>.pem` and `<name>.key`.
    fn issue(&self, name: &str) {
        openssl(
            self.0.path(),
            &format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name} -keyout {name}.key \
                 -out {name}.pem -CA root.pem -CAkey root.key -addext subjectAltName=DNS:localhost -addext \
                 basicConstraints=critical,CA:FALSE"
            ),
        );
    }

    fn tls(&self) -> Tls {
        self.issue("server");
        let (certificate, key) = (self.path("server.pem"), self.path("server.key"));
        Tls { certificate, key, client_roots: None }
    }

    /// Connects with the certificate of this issuer for `name`.
    fn dial(&self, server: &Server, name: Option<&str>) -> TlsClient {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("root.pem")).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match name {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let of = |end: &str| self.path(&format!("{name}.{end}"));
                let certificate = CertificateDer::from_pem_file(of("pem")).unwrap();
                let key = PrivateKeyDer::from_pem_file(of("key")).unwrap();
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        let host = ServerName::try_from("localhost").unwrap();
        let tls = ClientConnection::new(Arc::new(config), host).unwrap();
        Client { stream: StreamOwned::new(tls, socket(server)) }
    }
}

fn encrypted(tls: Tls) -> Config {
    Config { tls: Some(tls), ..config() }
}

#[test]
fn commands_and_large_values_pass_over_tls() {
    let issuer = Issuer::new();
    let server = serve(encrypted(issuer.tls()));
    let mut client = issuer.dial(&server, None);
    let large = value(1, 900_000);
    client.ask("mn\r\n", "MN\r\n");
    client.sets("a", &large);
    client.ask("get a\r\n", item("a", &large));
    let many: String = (0..500).map(|number| format!("set k{number} 0 0 1\r\nx\r\n")).collect();
    client.ask(many, "STORED\r\n".repeat(500));
    let settings = client.ask_until("stats settings\r\n", "END\r\n");
    assert!(settings.contains("STAT ssl_enabled yes\r\n"));
}

#[test]
fn a_slow_reader_gets_all_replies_over_tls_and_waiting_bytes_are_counted() {
    let issuer = Issuer::new();
    let server = serve(encrypted(issuer.tls()));
    let (mut client, mut other) = (issuer.dial(&server, None), issuer.dial(&server, None));
    let large = value(2, 900_000);
    client.sets("a", &large);
    client.say("get a\r\n".repeat(40));
    soon("its replies wait", || waits(&mut other));
    assert!(other.figure("read_buf_bytes") > 0, "what waits is counted");
    for _ in 0..40 {
        client.hears(item("a", &large));
    }
    client.ask("mn\r\n", "MN\r\n");
    soon("what it held is given back", || other.figure("read_buf_bytes") <= AT_REST);
}

#[test]
fn a_client_that_reads_no_replies_over_tls_is_closed() {
    let issuer = Issuer::new();
    let server = serve(Config { stalled_seconds: 1, ..encrypted(issuer.tls()) });
    let (mut client, mut other) = (issuer.dial(&server, None), issuer.dial(&server, None));
    client.sets("a", &value(3, 900_000));
    client.say("get a\r\n".repeat(40));
    soon("it is closed", || other.figure("slow_kicks") == 1);
    assert!(other.figure("read_buf_bytes") <= AT_REST);
    assert_eq!(other.figure("curr_connections"), 1);
}

#[test]
fn a_client_that_does_not_complete_the_handshake_is_closed() {
    let issuer = Issuer::new();
    let server = serve(Config { stalled_seconds: 5, ..encrypted(issuer.tls()) });
    let (mut silent, mut other) = (dial(&server), issuer.dial(&server, None));
    soon("it is closed", || other.figure("slow_kicks") == 1);
    let mut alert = Vec::new();
    silent.stream.read_to_end(&mut alert).unwrap();
    assert_eq!(other.figure("curr_connections"), 1);
}

#[test]
fn tls_connections_end_with_close_notify() {
    let issuer = Issuer::new();
    let server = serve(encrypted(issuer.tls()));
    let mut client = issuer.dial(&server, None);
    let mut quitter = issuer.dial(&server, None);
    quitter.say("mn\r\nquit\r\n");
    quitter.hears("MN\r\n");
    // Without the server's close_notify this would be an error.
    assert_eq!(quitter.stream.read(&mut [0; 10]).unwrap(), 0);
    client.say("mn\r\n");
    client.stream.conn.send_close_notify();
    client.stream.flush_all();
    let mut all = Vec::new();
    client.stream.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"MN\r\n");
    let mut idle = issuer.dial(&server, None);
    idle.ask("mn\r\n", "MN\r\n");
    server.stop().drain();
    assert_eq!(idle.stream.read(&mut [0; 10]).unwrap(), 0);
    server.wait().unwrap();
}

trait FlushAll {
    fn flush_all(&mut self);
}

impl FlushAll for StreamOwned<ClientConnection, TcpStream> {
    fn flush_all(&mut self) {
        while self.conn.wants_write() {
            self.conn.write_tls(&mut self.sock).unwrap();
        }
    }
}

#[test]
fn clients_need_a_certificate_if_the_server_requires_one() {
    let (issuer, stranger) = (Issuer::new(), Issuer::new());
    issuer.issue("friend");
    stranger.issue("friend");
    fs::copy(issuer.path("root.pem"), stranger.path("root.pem")).unwrap();
    let client_roots = Some(issuer.path("root.pem"));
    let server = serve(encrypted(Tls { client_roots, ..issuer.tls() }));
    let mut friend = issuer.dial(&server, Some("friend"));
    friend.ask("mn\r\n", "MN\r\n");
    for mut other in [issuer.dial(&server, None), stranger.dial(&server, Some("friend"))] {
        other.say("mn\r\n");
        let error = other.stream.read(&mut [0; 10]).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidData, "{error:?}");
    }
    soon("both are closed", || friend.figure("curr_connections") == 1);
    assert_eq!(friend.figure("ssl_handshake_errors"), 2);
    assert_eq!(friend.figure("cmd_meta"), 0);
}

#[test]
fn a_client_without_tls_is_closed_and_others_continue() {
    let issuer = Issuer::new();
    let server = serve(Config { connections_max: 2, ..encrypted(issuer.tls()) });
    let mut client = issuer.dial(&server, None);
    let mut plain = dial(&server);
    plain.say("mn\r\nget a\r\n");
    // An alert is sent before the end.
    assert_eq!(
        plain.heard(7),
        [21, 3, 3, 0, 2, 2, 50],
        "a TLS alert that something can't be decoded"
    );
    plain.hears_end();
    client.ask("mn\r\n", "MN\r\n");
    soon("it is counted", || client.figure("ssl_handshake_errors") == 1);
    let _second = dial(&server);
    let mut third = dial(&server);
    third.hears_end();
}

#[test]
fn an_invalid_certificate_or_key_file_is_named() {
    let issuer = Issuer::new();
    let tls = issuer.tls();
    let nothing = issuer.path("nothing.pem");
    fs::write(&nothing, "text").unwrap();
    issuer.issue("other");
    for (tls, text) in [
        (Tls { certificate: nothing.clone(), ..tls.clone() }, "nothing.pem: no certificate in it"),
        (Tls { key: nothing.clone(), ..tls.clone() }, "nothing.pem: "),
        (Tls { client_roots: Some(nothing), ..tls.clone() }, "nothing.pem: no certificate in it"),
        (Tls { certificate: issuer.path("absent.pem"), ..tls.clone() }, "absent.pem: "),
        (Tls { key: issuer.path("other.key"), ..tls }, "server.pem: "),
    ] {
        let error = refused(encrypted(tls));
        assert!(error.contains(text), "{error}");
    }
}
