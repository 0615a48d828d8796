//! The client of HTTP requests.

use std::{sync::Arc, time::Duration};

use super::log::harmless;
use ureq::{
    Agent,
    config::ConfigBuilder,
    tls::{RootCerts, TlsConfig},
    typestate::AgentScope,
};

/// Configuration of an agent that trusts the certificates of the system. A reply with an error is no
/// error of the request: it has the reason.
pub fn agent() -> ConfigBuilder<AgentScope> {
    let tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(RootCerts::PlatformVerifier)
        .build();
    Agent::config_builder()
        .tls_config(tls)
        .timeout_connect(Some(Duration::from_secs(10)))
        .http_status_as_error(false)
        .user_agent(concat!("profiler/", env!("CARGO_PKG_VERSION")))
}

/// A text of a server as one line for a message, without control characters.
pub fn line(text: &str) -> String {
    harmless(text.lines().next().unwrap_or_default())
}
