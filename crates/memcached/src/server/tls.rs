//! TLS by rustls, over a non-blocking socket.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use super::config::{Error, Tls};
use super::socket::Got;

impl Tls {
    /// Reads all files as `Server::new` does, and nothing more.
    ///
    /// # Errors
    /// [`Error::Tls`]: the first of them that can't be used.
    pub fn check(&self) -> Result<(), Error> {
        server(self).map(drop)
    }
}

/// The configuration from certificates and keys.
pub(super) fn server(tls: &Tls) -> Result<Arc<ServerConfig>, Error> {
    let wrong = |path: &Path, why: &dyn core::fmt::Display| Error::Tls {
        path: path.to_owned(),
        why: why.to_string(),
    };
    let chain = certificates(&tls.certificate)?;
    let key = open(&tls.key).map_err(|error| wrong(&tls.key, &error))?;
    let key = PrivateKeyDer::from_pem_reader(key).map_err(|error| wrong(&tls.key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&tls.certificate, &error))?;
    let builder = match &tls.client_roots {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for root in certificates(path)? {
                roots.add(root).map_err(|error| wrong(path, &error))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| wrong(path, &error))?)
        }
    };
    let config = builder.with_single_cert(chain, key);
    Ok(Arc::new(config.map_err(|error| wrong(&tls.certificate, &error))?))
}

/// Opens a file of certificates or keys, of which at most 1 MiB is read.
fn open(path: &Path) -> io::Result<impl io::Read> {
    Ok(File::open(path)?.take(1 << 20))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let wrong = |why: String| Error::Tls { path: path.to_owned(), why };
    let file = open(path).map_err(|error| wrong(error.to_string()))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_reader_iter(file).collect();
    let all = all.map_err(|error| wrong(error.to_string()))?;
    if all.is_empty() { Err(wrong("no certificate in it".to_owned())) } else { Ok(all) }
}

/// Maximum bytes accepted before the socket has taken them: pending bytes should be kept where they are accounted.
const TAKEN_MAX: usize = 64 << 10;

/// TLS over a socket.
#[derive(Debug)]
pub(super) struct TlsStream {
    tls: ServerConnection,
    socket: TcpStream,
}

impl TlsStream {
    pub(super) fn new(config: Arc<ServerConfig>, socket: TcpStream) -> io::Result<Self> {
        let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
        // The limit is enforced here.
        tls.set_buffer_limit(None);
        Ok(Self { tls, socket })
    }

    pub(super) fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    pub(super) fn fd(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether the handshake is complete.
    pub(super) fn is_open(&self) -> bool {
        !self.tls.is_handshaking()
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Got> {
        loop {
            match self.tls.reader().read(buffer) {
                Ok(0) => return Ok(Got::End),
                Ok(bytes) => return Ok(Got::Bytes(bytes)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => (),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Got::End),
                Err(error) => return Err(error),
            }
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => return Ok(Got::End),
                Ok(_) => {
                    let processed = self.tls.process_new_packets();
                    // Including an alert with the error of the client.
                    self.flush()?;
                    processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Got::Nothing),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the number of bytes accepted; 0 if the socket has not taken the previous ones.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        self.flush()?;
        while taken < bytes.len() && !self.holds() {
            let part = &bytes[taken..bytes.len().min(taken + TAKEN_MAX)];
            self.tls.writer().write_all(part)?;
            taken += part.len();
            self.flush()?;
        }
        Ok(taken)
    }

    pub(super) fn holds(&self) -> bool {
        self.tls.wants_write()
    }

    /// Maximum bytes that wait for the socket.
    pub(super) fn memory(&self) -> usize {
        if self.holds() { TAKEN_MAX } else { 0 }
    }

    /// Passes accepted bytes to the socket. Returns whether the socket accepted any.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let mut is_taken = false;
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(_) => is_taken = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(is_taken)
    }

    /// Signals the end of the stream, if the socket accepts it at once.
    pub(super) fn end(&mut self) {
        self.tls.send_close_notify();
        // A peer that is gone need not be notified.
        let _ = self.flush();
    }
}

/// Arbitrary bytes as the files of TLS, three with a zero byte between them: certificates, key, roots of clients.
#[cfg(fuzzing)]
pub(super) fn fuzz(data: &[u8]) {
    use std::os::fd::AsRawFd as _;
    let file = |bytes: &[u8]| {
        let file = rustix::fs::memfd_create("fuzzed", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
        rustix::io::write(&file, bytes).ok()?;
        Some((format!("/proc/self/fd/{}", file.as_raw_fd()).into(), file))
    };
    let mut files = data.splitn(3, |byte| *byte == 0).map(file);
    let (Some(Some((certificate, _open))), Some(Some((key, _also)))) = (files.next(), files.next())
    else {
        return;
    };
    let roots = files.next().flatten();
    let client_roots = roots.as_ref().map(|(path, _)| std::path::PathBuf::clone(path));
    let _ = server(&Tls { certificate, key, client_roots });
}
