//! AWS Signature Version 4: the agent's client signs with a key that is none, and the request is
//! signed anew.
//!
//! Content that the client signed in chunks is signed anew chunk by chunk (`chunks`).

use super::chunks::ChunkSigner;
use super::time::Civil;
use super::{Content, Edits, View, canonical, encode, split};
use crate::credential::Error;
use crate::{Scheme, Secret};
use ring::hmac;
use std::collections::BTreeMap;
use zeroize::Zeroizing;

const HASH: &str = "x-amz-content-sha256";
const TOKEN: &str = "x-amz-security-token";
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
const CHUNKS: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const CHUNKS_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";

/// Parameters of a query that was signed in advance.
const PRESIGNED: [&str; 7] = [
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-signedheaders",
    "x-amz-signature",
    "x-amz-security-token",
];

/// What a signature is valid for, where the request does not say it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sigv4 {
    /// The region; none: from the client's own signature, or from the host.
    pub region: Option<String>,
    /// The service; none: likewise.
    pub service: Option<String>,
}

/// An access key in its parts.
struct AccessKey<'a> {
    id: &'a str,
    secret: &'a str,
    token: Option<&'a str>,
}

impl Sigv4 {
    /// Signs a request.
    pub(super) fn edits(&self, secret: &Secret, request: &View<'_>) -> Result<Edits, Error> {
        let key = AccessKey::of(secret)?;
        let (region, service) = self.scope(request)?;
        let target = unsigned_target(request.target);
        let (path, query) = split(&target);
        let moment = Civil::of(request.now_ms);
        let hash = payload_hash(request, &service)?;
        let mut set = vec![("x-amz-date".to_owned(), Secret::from(moment.basic()))];
        if is_s3(&service) || sent(request, HASH).is_some() {
            set.push((HASH.to_owned(), Secret::from(hash.as_str())));
        }
        if let Some(token) = key.token {
            set.push((TOKEN.to_owned(), super::header_value(token.as_bytes().to_vec())?));
        }
        let fields = signed_fields(request, &set);
        let (lines, names) = canonical::headers(&fields);
        let path = canonical::path(path, is_s3(&service));
        let query = canonical::query(query.unwrap_or_default());
        let mut text = format!("{}\n{path}\n{query}\n", request.method).into_bytes();
        text.extend_from_slice(&lines);
        text.extend_from_slice(format!("\n{names}\n{hash}").as_bytes());
        let scope = format!("{}/{region}/{service}/aws4_request", moment.date());
        let signed = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{}", moment.basic(), sha256(&text));
        let signing = signing_key(key.secret, &moment.date(), &region, &service);
        let signature = tag(&signing, &signed);
        let id = key.id;
        let value = format!(
            "AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}"
        );
        set.push(("authorization".to_owned(), super::header_value(value.into_bytes())?));
        let mut shown = vec![Secret::from(key.secret), Secret::from(signature.as_str())];
        shown.extend(key.token.map(Secret::from));
        let mut edits = Edits {
            target: (target != request.target).then(|| Secret::from(target)),
            remove: if key.token.is_none() { vec![TOKEN] } else { Vec::new() },
            set,
            shown,
            ..Edits::default()
        };
        if hash == CHUNKS || hash == CHUNKS_TRAILER {
            let trailer = hash == CHUNKS_TRAILER;
            let mut signer = ChunkSigner::new(signing, &moment.basic(), &scope, signature, trailer);
            match request.content {
                Content::Whole(content) => {
                    edits.content = Some(Secret::new(signer.push(content)?));
                    signer.finish()?;
                }
                Content::Streamed => edits.chunks = Some(signer),
            }
        }
        Ok(edits)
    }

    /// Region and service: policy's word, else the client's own, else what the host says.
    fn scope(&self, request: &View<'_>) -> Result<(String, String), Error> {
        let of_client = client_scope(request);
        let of_host = host_scope(request.authority);
        let pick = |own: &Option<String>, part: fn((String, String)) -> String| {
            own.clone().or_else(|| of_client.clone().or_else(|| of_host.clone()).map(part))
        };
        let unknown =
            Error::Unsupported("requests whose region and service are not known; name them");
        let region = pick(&self.region, |(region, _)| region).ok_or(unknown.clone())?;
        let service = pick(&self.service, |(_, service)| service).ok_or(unknown)?;
        Ok((region, service))
    }
}

impl<'a> AccessKey<'a> {
    fn of(secret: &'a Secret) -> Result<Self, Error> {
        let form = Error::Unreadable("sigv4 needs ACCESS_KEY_ID:SECRET_ACCESS_KEY[:SESSION_TOKEN]");
        let mut parts = secret.expose_text().ok_or(form.clone())?.splitn(3, ':');
        let (Some(id), Some(secret)) = (parts.next(), parts.next()) else { return Err(form) };
        if id.is_empty() || secret.is_empty() || !id.bytes().all(|c| c.is_ascii_alphanumeric()) {
            return Err(form);
        }
        Ok(Self { id, secret, token: parts.next().filter(|token| !token.is_empty()) })
    }
}

/// Whether a service encodes paths once, and takes content without a digest.
fn is_s3(service: &str) -> bool {
    ["s3", "s3-object-lambda", "s3-outposts", "s3express"].contains(&service)
}

fn sent<'a>(request: &View<'a>, name: &str) -> Option<&'a [u8]> {
    let named = |field: &&(&[u8], &[u8])| field.0.eq_ignore_ascii_case(name.as_bytes());
    request.headers.iter().find(named).map(|(_, value)| value.trim_ascii())
}

/// The scope that the client signed for.
fn client_scope(request: &View<'_>) -> Option<(String, String)> {
    let header = sent(request, "authorization").and_then(|v| std::str::from_utf8(v).ok());
    let of_header = header.and_then(|value| {
        let rest = value.strip_prefix("AWS4-HMAC-SHA256")?;
        let credential = rest.split(',').find_map(|p| p.trim().strip_prefix("Credential="))?;
        Some(credential.to_owned())
    });
    let credential = of_header.or_else(|| {
        let (_, query) = split(request.target);
        let value = query?.split('&').find_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            name.eq_ignore_ascii_case("x-amz-credential").then_some(value)
        })?;
        String::from_utf8(encode::decoded(value.as_bytes())).ok()
    })?;
    let mut parts = credential.rsplit('/');
    let (end, service, region) = (parts.next()?, parts.next()?, parts.next()?);
    let plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
    };
    (end == "aws4_request" && plain(service) && plain(region))
        .then(|| (region.to_owned(), service.to_owned()))
}

/// The scope that a host of AWS names: `[more.]service[.region].amazonaws.com`.
fn host_scope(authority: &str) -> Option<(String, String)> {
    let host = authority.split(':').next()?.to_ascii_lowercase();
    let rest = host.strip_suffix(".amazonaws.com").or(host.strip_suffix(".amazonaws.com.cn"))?;
    let mut labels: Vec<&str> = rest.split('.').filter(|label| *label != "dualstack").collect();
    let last = labels.pop()?;
    let is_region = |label: &str| {
        label.matches('-').count() >= 2 && label.ends_with(|c: char| c.is_ascii_digit())
    };
    match labels.last() {
        Some(service) if is_region(last) => Some((last.to_owned(), (*service).to_owned())),
        Some(_) | None if is_region(last) => None,
        Some(_) | None => Some(("us-east-1".to_owned(), last.to_owned())),
    }
}

/// The target without the parameters of a signature in advance, where it has one.
fn unsigned_target(target: &str) -> String {
    let (path, query) = split(target);
    let Some(query) = query else { return target.to_owned() };
    let name = |pair: &str| pair.split('=').next().unwrap_or_default().to_ascii_lowercase();
    if !query.split('&').any(|pair| name(pair) == "x-amz-signature") {
        return target.to_owned();
    }
    let kept: Vec<_> =
        query.split('&').filter(|p| !PRESIGNED.contains(&name(p).as_str())).collect();
    if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) }
}

/// What is signed for the content. A digest that the client declares stays: the service compares it
/// with the content itself.
fn payload_hash(request: &View<'_>, service: &str) -> Result<String, Error> {
    if let Some(declared) = sent(request, HASH) {
        let is_digest = declared.len() == 64 && declared.iter().all(u8::is_ascii_hexdigit);
        let kept = is_digest
            || declared == UNSIGNED.as_bytes()
            || declared == b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"
            || declared == CHUNKS.as_bytes()
            || declared == CHUNKS_TRAILER.as_bytes();
        return match std::str::from_utf8(declared) {
            Ok(declared) if kept => Ok(declared.to_owned()),
            Ok(_) | Err(_) => Err(Error::Unsupported("content that the client signed in this way")),
        };
    }
    match request.content {
        Content::Whole(content) => Ok(sha256(content)),
        Content::Streamed if is_s3(service) && request.scheme == Scheme::Https => {
            Ok(UNSIGNED.to_owned())
        }
        Content::Streamed => {
            Err(Error::Unsupported("signing content that is too long to be read ahead"))
        }
    }
}

/// The fields that are signed, by name: `host`, `content-type` and all of AWS's own.
fn signed_fields(request: &View<'_>, set: &[(String, Secret)]) -> BTreeMap<String, Vec<u8>> {
    let mut fields = BTreeMap::from([("host".to_owned(), request.authority.as_bytes().to_vec())]);
    for (name, value) in request.headers {
        let Ok(name) = std::str::from_utf8(name).map(str::to_ascii_lowercase) else { continue };
        let ours = name == "content-type" || name.starts_with("x-amz-");
        if !ours || name == TOKEN || set.iter().any(|(known, _)| *known == name) {
            continue;
        }
        let field: &mut Vec<u8> = fields.entry(name).or_default();
        if !field.is_empty() {
            field.push(b',');
        }
        field.extend_from_slice(value.trim_ascii());
    }
    fields.extend(set.iter().map(|(name, value)| (name.clone(), value.expose().to_vec())));
    fields
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    encode::hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

/// The key that signs a day's requests in a region to a service.
pub(super) fn signing_key(
    secret: &str,
    date: &str,
    region: &str,
    service: &str,
) -> Zeroizing<Vec<u8>> {
    let mut derived = Zeroizing::new(Vec::with_capacity(4 + secret.len()));
    derived.extend_from_slice(b"AWS4");
    derived.extend_from_slice(secret.as_bytes());
    for part in [date, region, service, "aws4_request"] {
        derived = mac(&derived, part);
    }
    derived
}

/// The signature of a text.
pub(super) fn tag(key: &[u8], text: &str) -> String {
    encode::hex(&mac(key, text))
}

fn mac(key: &[u8], text: &str) -> Zeroizing<Vec<u8>> {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes());
    Zeroizing::new(tag.as_ref().to_vec())
}
