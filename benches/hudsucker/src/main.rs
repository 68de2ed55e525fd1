//! hudsucker as its users set it up: every call is intercepted and gets one header.
//!
//! Arguments: the port, the files of the authority's certificate and key, and of the origins' roots.

use hudsucker::certificate_authority::RcgenAuthority;
use hudsucker::hyper::header::{AUTHORIZATION, HeaderValue};
use hudsucker::hyper::{Method, Request};
use hudsucker::hyper_util::client::legacy::connect::HttpConnector;
use hudsucker::rcgen::{Issuer, KeyPair};
use hudsucker::rustls::crypto::aws_lc_rs::default_provider;
use hudsucker::rustls::pki_types::{CertificateDer, pem::PemObject as _};
use hudsucker::rustls::{ClientConfig, RootCertStore};
use hudsucker::{Body, HttpContext, HttpHandler, Proxy, RequestOrResponse};
use std::error::Error;

#[derive(Clone)]
struct Inject;

impl HttpHandler for Inject {
    async fn handle_request(
        &mut self,
        _context: &HttpContext,
        mut request: Request<Body>,
    ) -> RequestOrResponse {
        if request.method() != Method::CONNECT {
            let value = HeaderValue::from_static("Bearer bench-token");
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        request.into()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, certificate, key, roots] = arguments.as_slice() else {
        return Err("arguments: PORT CERTIFICATE KEY ROOTS".into());
    };
    let key = KeyPair::from_pem(&std::fs::read_to_string(key)?)?;
    let issuer = Issuer::from_ca_cert_pem(&std::fs::read_to_string(certificate)?, key)?;
    let mut trusted = RootCertStore::empty();
    trusted.add(CertificateDer::from_pem_file(roots)?)?;
    let tls = ClientConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(trusted)
        .with_no_client_auth();
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp);
    let proxy = Proxy::builder()
        .with_addr(([127, 0, 0, 1], port.parse()?).into())
        .with_ca(RcgenAuthority::new(issuer, 1000, default_provider()))
        .with_http_connector(connector)
        .with_http_handler(Inject)
        .build()?;
    Ok(proxy.start().await?)
}
