//! TLS by rustls, over a socket that does not wait.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use super::config::{Error, Tls};
use super::stream::Got;

/// What certificates and keys come to.
pub(super) fn server(tls: &Tls) -> Result<Arc<ServerConfig>, Error> {
    let wrong = |path: &Path, why: &dyn core::fmt::Display| Error::Tls {
        path: path.to_owned(),
        why: why.to_string(),
    };
    let chain = certificates(&tls.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| wrong(&tls.key, &error))?;
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

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let wrong = |why: String| Error::Tls { path: path.to_owned(), why };
    let all: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?.collect();
    let all = all.map_err(|error| wrong(error.to_string()))?;
    if all.is_empty() { Err(wrong("no certificate in it".to_owned())) } else { Ok(all) }
}

/// TLS over a socket.
#[derive(Debug)]
pub(super) struct TlsStream {
    tls: ServerConnection,
    socket: TcpStream,
}

impl TlsStream {
    pub(super) fn new(config: Arc<ServerConfig>, socket: TcpStream) -> io::Result<Self> {
        let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
        // How much waits to be written is limited by who asks for it to be.
        tls.set_buffer_limit(None);
        Ok(Self { tls, socket })
    }

    pub(super) fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    pub(super) fn fd(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether the two have agreed on keys.
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
                    // Also what tells the client what is wrong with its packets.
                    self.flush()?;
                    processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Got::Nothing),
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes all.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tls.writer().write_all(bytes)?;
        self.flush()?;
        Ok(bytes.len())
    }

    pub(super) fn holds(&self) -> bool {
        self.tls.wants_write()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(_) => (),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
