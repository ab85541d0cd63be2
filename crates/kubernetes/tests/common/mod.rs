//! A kubelet for tests: it calls the driver's services over their unix sockets as the real one does.

use std::path::Path;
use std::time::Duration;

use nearfar_kubernetes::grpc::Sockets;
use nearfar_kubernetes::messages as api;
use tonic::Status;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// Kubelet's connections.
pub(crate) struct Kubelet {
    pub(crate) registration: Channel,
    pub(crate) services: Channel,
}

/// A connection to a socket, with this authority in its requests.
async fn connected(socket: &Path, authority: &str) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    let endpoint = endpoint.origin(format!("http://{authority}").parse().unwrap());
    endpoint.timeout(Duration::from_secs(120)).connect().await.unwrap()
}

impl Kubelet {
    /// Waits until the driver serves, and connects.
    pub(crate) async fn connect(sockets: &Sockets) -> Self {
        for _ in 0..4800 {
            if sockets.registration.exists() && sockets.is_served().await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        // Kubelet's library takes the path as the authority of registrations.
        let path = sockets.registration.to_string_lossy().replace('/', "%2F");
        Self {
            registration: connected(&sockets.registration, &path).await,
            services: connected(&sockets.services, "localhost").await,
        }
    }

    async fn call<A, B>(channel: &Channel, path: String, request: A) -> Result<B, Status>
    where
        A: prost::Message + Send + Sync + 'static,
        B: prost::Message + Default + Send + Sync + 'static,
    {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.unwrap();
        let path: PathAndQuery = path.parse().unwrap();
        let codec = ProstCodec::<A, B>::default();
        client
            .unary(tonic::Request::new(request), path, codec)
            .await
            .map(tonic::Response::into_inner)
    }

    pub(crate) async fn info(&self) -> api::PluginInfo {
        let path = format!("/{}/GetInfo", api::REGISTRATION);
        Self::call(&self.registration, path, api::InfoRequest {}).await.unwrap()
    }

    pub(crate) async fn notify(&self, error: &str) {
        let path = format!("/{}/NotifyRegistrationStatus", api::REGISTRATION);
        let plugin_registered = error.is_empty();
        let status = api::RegistrationStatus { plugin_registered, error: error.into() };
        let answer: Result<api::RegistrationStatusResponse, Status> =
            Self::call(&self.registration, path, status).await;
        answer.unwrap();
    }

    pub(crate) async fn dra<B>(&self, method: &str, claims: &[api::Claim]) -> Result<B, Status>
    where
        B: prost::Message + Default + Send + Sync + 'static,
    {
        let path = format!("/{}/{method}", api::DRA);
        Self::call(&self.services, path, api::ClaimsRequest { claims: claims.to_vec() }).await
    }

    pub(crate) async fn prepare(&self, claim: &api::Claim) -> api::PrepareResult {
        let answer = self.dra("NodePrepareResources", std::slice::from_ref(claim)).await;
        let mut answer: api::PrepareResponse = answer.unwrap();
        answer.claims.remove(&claim.uid).unwrap()
    }

    pub(crate) async fn unprepare(&self, claim: &api::Claim) -> api::UnprepareResult {
        let answer = self.dra("NodeUnprepareResources", std::slice::from_ref(claim)).await;
        let mut answer: api::UnprepareResponse = answer.unwrap();
        answer.claims.remove(&claim.uid).unwrap()
    }
}
