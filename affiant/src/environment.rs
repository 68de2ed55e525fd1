//! The variables that make common clients use the proxy and trust the home's CA.

use std::path::Path;

/// Variables whose value is the path of a PEM bundle, and who reads them.
const BUNDLE: &[(&str, &str)] = &[
    ("SSL_CERT_FILE", "OpenSSL, Go, Python's ssl and httpx, Ruby, uv"),
    ("CURL_CA_BUNDLE", "curl"),
    ("REQUESTS_CA_BUNDLE", "Python requests, boto3"),
    ("HTTPLIB2_CA_CERTS", "httplib2, Google's client for Python"),
    ("PIP_CERT", "pip"),
    ("GIT_SSL_CAINFO", "git"),
    ("NODE_EXTRA_CA_CERTS", "Node"),
    ("NPM_CONFIG_CAFILE", "npm"),
    ("DENO_CERT", "Deno"),
    ("CARGO_HTTP_CAINFO", "cargo"),
    ("AWS_CA_BUNDLE", "AWS"),
    ("CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "gcloud"),
    ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "gRPC"),
    ("BUNDLE_SSL_CA_CERT", "bundler"),
    ("NIX_SSL_CERT_FILE", "Nix"),
];

const PROXY: &[&str] = &["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];

/// The CA variables.
pub(crate) fn ca(bundle: &Path) -> Vec<(String, String)> {
    let path = bundle.display().to_string();
    BUNDLE.iter().map(|(name, _)| ((*name).to_owned(), path.clone())).collect()
}

/// Proxy and CA variables. `no_proxy` replaces an inherited list, which could lead around the proxy.
pub(crate) fn all(proxy_url: &str, no_proxy: &str, bundle: &Path) -> Vec<(String, String)> {
    let mut variables = ca(bundle);
    for name in PROXY {
        variables.push(((*name).to_owned(), proxy_url.to_owned()));
        variables.push((name.to_lowercase(), proxy_url.to_owned()));
    }
    variables.push(("NO_PROXY".to_owned(), no_proxy.to_owned()));
    variables.push(("no_proxy".to_owned(), no_proxy.to_owned()));
    variables.push(("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned()));
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cases_of_the_proxy_variables_are_set_and_no_proxy_is_replaced() {
        let variables = all("http://a:t@127.0.0.1:1", "", Path::new("/b.pem"));
        let value =
            |name: &str| variables.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "all_proxy"] {
            assert_eq!(value(name), Some("http://a:t@127.0.0.1:1"), "{name}");
        }
        assert_eq!(value("no_proxy"), Some(""));
        assert_eq!(value("NODE_EXTRA_CA_CERTS"), Some("/b.pem"));
        assert_eq!(value("DENO_CERT"), Some("/b.pem"));
        assert_eq!(value("NODE_USE_ENV_PROXY"), Some("1"));
    }
}
