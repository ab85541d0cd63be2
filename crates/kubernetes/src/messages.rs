//! Messages of kubelet's services for plugins: registration (v1) and dynamic resource allocation (v1).
//!
//! Names and numbers of fields are those of k8s.io/kubelet 0.36, `pluginregistration/v1` and `dra/v1`.

use std::collections::HashMap;

/// The service by which a plugin introduces itself.
pub const REGISTRATION: &str = "pluginregistration.Registration";
/// The service that kubelet calls for claims.
pub const DRA: &str = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin";
/// The name of that service in a registration.
pub const DRA_VERSION: &str = "v1.DRAPlugin";
/// The type of plugin in a registration.
pub const DRA_TYPE: &str = "DRAPlugin";

/// A question for the plugin's introduction.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct InfoRequest {}

/// The introduction of a plugin.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PluginInfo {
    /// The type of plugin.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// The driver's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The socket of its services.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    /// The services it has.
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// The result of a registration.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegistrationStatus {
    /// Whether the plugin is registered.
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    /// The reason if it is not.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// The answer to a [`RegistrationStatus`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RegistrationStatusResponse {}

/// A reference to a resource claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Claim {
    /// Its namespace.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Its uid.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// Claims to prepare before pods start, or to revert after they ended.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ClaimsRequest {
    /// The claims.
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

/// Prepared claims by uid.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PrepareResponse {
    /// The result of each claim.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, PrepareResult>,
}

/// A prepared claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PrepareResult {
    /// Its devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    /// The reason if it is not prepared.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// A device of a claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Device {
    /// The requests that it was allocated for.
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    /// Its pool.
    #[prost(string, tag = "2")]
    pub pool_name: String,
    /// Its name.
    #[prost(string, tag = "3")]
    pub device_name: String,
    /// Its CDI devices.
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    /// The number of the part of a shared device.
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

/// Reverted claims by uid.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UnprepareResponse {
    /// The result of each claim.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, UnprepareResult>,
}

/// A reverted claim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UnprepareResult {
    /// The reason if it is still prepared.
    #[prost(string, tag = "1")]
    pub error: String,
}
