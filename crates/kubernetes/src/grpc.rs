//! The driver's services for kubelet, over unix sockets: registration, and preparation of claims.
//!
//! Kubelet finds the registration socket in its directory of plugins, asks it for the driver's name and the socket of
//! its services, and reports the result. The services are declared here by hand: five methods need no generated code.
//!
//! The name of the registration socket has an `@`. Kubelet's client takes the socket's path, percent-encoded, as the
//! request's authority. A percent sign is not valid there but in the part before an `@` (user information), and the HTTP
//! library refuses the request without one.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::fs::Mode;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tonic::body::Body;
use tonic::codegen::tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::DRIVER;
use crate::driver::{Driver, Host, quoted};
use crate::messages as api;

/// Claims in a request at most; kubelet sends those of one pod.
const CLAIMS_MAX: usize = 1024;

/// Connections that wait for the driver.
const BACKLOG: i32 = 128;

/// The sockets of a driver.
#[derive(Clone, Debug)]
pub struct Sockets {
    /// That of the services.
    pub services: PathBuf,
    /// That of the registration.
    pub registration: PathBuf,
}

impl Sockets {
    /// The sockets below kubelet's directories of plugins and of registrations.
    #[must_use]
    pub fn new(plugins: &Path, registry: &Path) -> Self {
        Self {
            services: plugins.join(DRIVER).join("dra.sock"),
            registration: registry.join(format!("{DRIVER}@reg.sock")),
        }
    }

    /// Removes sockets, and the directory of the services; true if any was there.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove(&self) -> io::Result<bool> {
        let registered = remove(&self.registration)?;
        let served = remove(&self.services)?;
        if let Some(dir) = self.services.parent() {
            // A directory with other files is left.
            let _ = std::fs::remove_dir(dir);
        }
        Ok(registered || served)
    }

    /// Whether a driver answers at the socket of the services.
    pub async fn is_served(&self) -> bool {
        UnixStream::connect(&self.services).await.is_ok()
    }
}

/// Removes a socket; any other file is left, with an error.
fn remove(path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => std::fs::remove_file(path).map(|()| true),
        Ok(_) => Err(io::Error::other(format!("{} is not a socket; remove it", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn bind(path: &Path) -> io::Result<UnixListenerStream> {
    remove(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file is created with the socket's mode.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, BACKLOG)?;
    Ok(UnixListenerStream::new(UnixListener::from_std(socket.into())?))
}

/// Serves until `stop`, then removes the sockets. `registered` is notified when kubelet has registered the driver.
///
/// # Errors
/// A socket can't be made, or another driver serves there.
pub async fn serve<H: Host>(
    driver: Arc<Driver<H>>,
    sockets: &Sockets,
    registered: Arc<Notify>,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    if sockets.is_served().await {
        let path = sockets.services.display();
        return Err(io::Error::other(format!("another driver serves at {path}; stop it first")));
    }
    if let Some(dir) = sockets.services.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let failed = |path: &Path, error: io::Error| {
        io::Error::new(error.kind(), format!("can't listen at {}: {error}", path.display()))
    };
    let services = bind(&sockets.services).map_err(|error| failed(&sockets.services, error))?;
    // Kubelet connects to the services as soon as it finds the registration.
    let registration =
        bind(&sockets.registration).map_err(|error| failed(&sockets.registration, error))?;
    let endpoint = sockets.services.to_string_lossy().into_owned();
    let registrar = Arc::new(Registration { driver: Arc::clone(&driver), endpoint, registered });
    let registrar = Routes(move |request| -> BoxFuture<_, _> {
        Box::pin(register(Arc::clone(&registrar), request))
    });
    let dra = Routes(move |request| -> BoxFuture<_, _> {
        Box::pin(claims(Arc::clone(&driver), request))
    });
    let server = tonic::transport::Server::builder;
    let served = server().serve_with_incoming(dra, services);
    let introduced = server().serve_with_incoming(registrar, registration);
    let stop = std::pin::pin!(stop);
    // Kubelet keeps its connections, so their end is not waited for.
    let ended = tokio::select! {
        ended = served => ended.map_err(io::Error::other),
        ended = introduced => ended.map_err(io::Error::other),
        () = stop => Ok(()),
    };
    let removed = sockets.remove().map(|_| ());
    ended.and(removed)
}

/// A method as a function of its request.
struct Method<F>(F);

impl<F, A, B, Fut> UnaryService<A> for Method<F>
where
    F: FnMut(A) -> Fut,
    Fut: Future<Output = Result<B, Status>> + Send + 'static,
    B: Send + 'static,
{
    type Response = B;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, Status>> + Send>>;

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let answer = (self.0)(request.into_inner());
        Box::pin(async move { answer.await.map(Response::new) })
    }
}

type Answer = Result<http::Response<Body>, Infallible>;

/// Answers with one method.
async fn unary<F, A, B, Fut>(method: F, request: http::Request<Body>) -> Answer
where
    F: FnMut(A) -> Fut,
    Fut: Future<Output = Result<B, Status>> + Send + 'static,
    A: prost::Message + Default + Send + 'static,
    B: prost::Message + Send + 'static,
{
    let codec = ProstCodec::<B, A>::default();
    Ok(Grpc::new(codec).unary(Method(method), request).await)
}

/// The service and the method of a request.
fn target(request: &http::Request<Body>) -> (String, String) {
    let path = request.uri().path().trim_start_matches('/');
    let (service, method) = path.split_once('/').unwrap_or((path, ""));
    (service.into(), method.into())
}

fn unknown() -> Answer {
    Ok(Status::unimplemented("there is no such method").into_http())
}

/// A service as a function of its requests.
#[derive(Clone)]
struct Routes<F>(F);

impl<F> Service<http::Request<Body>> for Routes<F>
where
    F: Fn(http::Request<Body>) -> BoxFuture<http::Response<Body>, Infallible>,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        (self.0)(request)
    }
}

/// The registration.
struct Registration<H> {
    driver: Arc<Driver<H>>,
    endpoint: String,
    registered: Arc<Notify>,
}

async fn register<H: Host>(this: Arc<Registration<H>>, request: http::Request<Body>) -> Answer {
    let (service, method) = target(&request);
    match (service.as_str(), method.as_str()) {
        (api::REGISTRATION, "GetInfo") => {
            let info = api::PluginInfo {
                kind: api::DRA_TYPE.into(),
                name: DRIVER.into(),
                endpoint: this.endpoint.clone(),
                supported_versions: vec![api::DRA_VERSION.into()],
            };
            let answer = move |_: api::InfoRequest| std::future::ready(Ok(info.clone()));
            unary(answer, request).await
        }
        (api::REGISTRATION, "NotifyRegistrationStatus") => {
            let answer = move |status: api::RegistrationStatus| {
                this.note(&status);
                std::future::ready(Ok(api::RegistrationStatusResponse {}))
            };
            unary(answer, request).await
        }
        _ => unknown(),
    }
}

impl<H: Host> Registration<H> {
    fn note(&self, status: &api::RegistrationStatus) {
        if status.plugin_registered {
            self.driver.host().log("event=registered");
            self.registered.notify_one();
        } else {
            let why = quoted(&status.error);
            self.driver.host().log(&format!("event=not_registered reason={why}"));
        }
    }
}

/// Preparation of claims.
async fn claims<H: Host>(driver: Arc<Driver<H>>, request: http::Request<Body>) -> Answer {
    let (service, method) = target(&request);
    match (service.as_str(), method.as_str()) {
        (api::DRA, "NodePrepareResources") => {
            unary(move |claims| prepare(Arc::clone(&driver), claims), request).await
        }
        (api::DRA, "NodeUnprepareResources") => {
            unary(move |claims| unprepare(Arc::clone(&driver), claims), request).await
        }
        _ => unknown(),
    }
}

fn bounded(request: &api::ClaimsRequest) -> Result<(), Status> {
    let count = request.claims.len();
    if count > CLAIMS_MAX {
        let text = format!("{count} claims in one request; the most are {CLAIMS_MAX}");
        return Err(Status::invalid_argument(text));
    }
    Ok(())
}

async fn prepare<H: Host>(
    driver: Arc<Driver<H>>,
    request: api::ClaimsRequest,
) -> Result<api::PrepareResponse, Status> {
    bounded(&request)?;
    let mut response = api::PrepareResponse::default();
    for claim in request.claims {
        let result = match driver.prepare(&claim).await {
            Ok(devices) => api::PrepareResult { devices, error: String::new() },
            Err(error) => api::PrepareResult { devices: Vec::new(), error },
        };
        response.claims.insert(claim.uid, result);
    }
    Ok(response)
}

async fn unprepare<H: Host>(
    driver: Arc<Driver<H>>,
    request: api::ClaimsRequest,
) -> Result<api::UnprepareResponse, Status> {
    bounded(&request)?;
    let mut response = api::UnprepareResponse::default();
    for claim in request.claims {
        let error = driver.unprepare(&claim).err().unwrap_or_default();
        response.claims.insert(claim.uid, api::UnprepareResult { error });
    }
    Ok(response)
}
