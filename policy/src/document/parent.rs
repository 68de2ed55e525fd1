//! The tables `[[parent]]`: upstream proxies, and what goes past them.

use super::reader::{Fields, Reader};
use super::{HostPlace, Shared, host_fault, read_credential, title, unique, value};
use crate::host::Pattern;
use crate::parent::{Direct, Parent, ParentRule};
use crate::{Inject, Scheme};
use std::collections::BTreeMap;

pub(super) const KNOWN: &[&str] = &["name", "url", "credential", "no_proxy"];

/// The word for no upstream proxy.
const NONE: &str = "none";

/// Reads all upstream proxies.
pub(super) fn read(
    reader: &Reader<'_>,
    root: &Fields<'_, '_>,
    shared: &Shared,
) -> BTreeMap<String, Option<ParentRule>> {
    let mut seen = BTreeMap::new();
    let mut parents = BTreeMap::new();
    for (table, span) in root.tables("parent") {
        let fields = Fields::new(reader, table, span, title("parent", table, "name"), KNOWN);
        let Some(name) = fields.required("name", "\"corporate\"") else { continue };
        let Some(name) = unique(&fields, "name", name.value, &mut seen) else { continue };
        let rule = read_one(&fields, &name, shared);
        parents.insert(name, rule);
    }
    parents
}

fn read_one(fields: &Fields<'_, '_>, name: &str, shared: &Shared) -> Option<ParentRule> {
    let credential = read_credential(fields, shared);
    if let Some(credential) = &credential
        && !matches!(credential.inject, Inject::Basic | Inject::Bearer)
    {
        let hint =
            "an upstream proxy is asked by `basic` (the secret is user:password) or `bearer`";
        fields.wrong("credential", "is of another mode", Some(hint.to_owned()));
    }
    let direct = read_direct(fields);
    let url = fields.required("url", "\"http://proxy.corp.example:3128\"")?;
    let parts = url.value.split_once("://").and_then(|(scheme, rest)| {
        let scheme = [Scheme::Http, Scheme::Https].into_iter().find(|s| s.as_str() == scheme)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        Some((scheme, Pattern::parse(host).ok()?, port))
    });
    let Some((scheme, Pattern::Exact(host), port)) = parts else {
        let hint = "scheme, host and port; user and password are a [[credential]]".to_owned();
        fields.wrong("url", "is not http://HOST:PORT or https://HOST:PORT", Some(hint));
        return None;
    };
    let parent = Parent { name: name.to_owned(), scheme, host, port, credential };
    Some(ParentRule { parent, direct })
}

fn read_direct(fields: &Fields<'_, '_>) -> Vec<Direct> {
    let mut all = Vec::new();
    for text in fields.texts("no_proxy").unwrap_or_default() {
        match Direct::parse(text.value) {
            Ok(direct) => all.push(direct),
            Err(error) => {
                let (message, hint) = host_fault(text.value, error, HostPlace::NoProxy);
                fields.refuse_at(text.offset, "no_proxy", message, hint.map(str::to_owned));
            }
        }
    }
    all
}

/// The upstream proxy of a route: its own, or the inherited one.
pub(super) fn of_route(fields: &Fields<'_, '_>, shared: &Shared) -> Option<ParentRule> {
    read_choice(fields, shared).unwrap_or_else(|| shared.parent.clone())
}

/// The key `parent`; the outer `None` says that it is absent.
pub(super) fn read_choice(fields: &Fields<'_, '_>, shared: &Shared) -> Option<Option<ParentRule>> {
    let name = fields.text("parent")?.value;
    if name == NONE {
        return Some(None);
    }
    match shared.parents.get(name) {
        Some(rule) => Some(rule.clone()),
        None => {
            let known = shared.parents.keys().map(String::as_str);
            let hint = match value::nearest(name, known) {
                Some(near) => format!("did you mean {near:?}?"),
                None => "define it under [[parent]], or write \"none\"".to_owned(),
            };
            fields.wrong("parent", "there is no upstream proxy of this name", Some(hint));
            None
        }
    }
}
