//! The policy language: TOML text to a checked document, every error with its place.
//!
//! Reading never stops at the first error, and never panics. What a text means is decided here; how
//! fast it is looked up is decided in `snapshot`.

pub(crate) mod approvals;
pub(crate) mod budget;
mod command;
mod conditions;
mod credential;
mod http;
mod key;
mod parent;
mod pasted;
pub(crate) mod reader;
mod recipe;
mod repeat;
mod ssh;
pub(crate) mod syntax;
pub(crate) mod terms;
mod token;
pub(crate) mod value;

use crate::condition::Conditions;
use crate::host::{self, Pattern};
use crate::parent::ParentRule;
use crate::preset::{Call, Contract, LeftOut, PRESETS, Preset};
use crate::{Approval, Credential, HttpGrant, SshGrant, path};
use approvals::Approvals;
use reader::{Fields, Place, Reader};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use terms::Terms;
use toml::de::DeTable;

/// A condition on a name: absent, it restricts nothing.
pub(crate) type Names = Option<BTreeSet<String>>;

/// A checked policy text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Document {
    /// What holds where a route says nothing.
    pub defaults: Defaults,
    /// The routes.
    pub http: Vec<HttpRoute>,
    /// The SSH routes.
    pub ssh: Vec<SshRoute>,
    /// Private certificate authorities.
    pub trust: Vec<Trust>,
    /// How calls wait for a person.
    pub approvals: Approvals,
    /// What agents may use.
    pub budgets: Vec<budget::Named>,
    /// All credentials, by id.
    pub credentials: Vec<Credential>,
    /// All upstream proxies, by name.
    pub parents: Vec<ParentRule>,
}

/// What becomes of HTTP that no route matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Egress {
    /// It is refused.
    #[default]
    Deny,
    /// It passes, without a credential.
    Allow,
    /// It passes, without a credential, and the record says that it would be refused.
    Observe,
}

impl Egress {
    /// The word in policy.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
            Self::Observe => "observe",
        }
    }
}

/// The table `[defaults]`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Defaults {
    /// What becomes of HTTP that no route matches.
    pub egress: Egress,
    /// Where `egress` stands.
    pub place: Option<Place>,
    /// The terms that routes inherit.
    pub terms: Terms,
    /// The upstream proxy that routes inherit.
    pub parent: Option<ParentRule>,
}

/// One `[[route]]`.
#[derive(Debug, Clone)]
pub(crate) struct HttpRoute {
    pub name: String,
    pub place: Place,
    pub agents: Names,
    pub scheme: crate::Scheme,
    /// One host, or those of the preset.
    pub hosts: Vec<Pattern>,
    pub port: u16,
    pub methods: Names,
    pub path: Option<path::Pattern>,
    pub conditions: Conditions,
    /// The grant, without what the preset says of single calls.
    pub grant: HttpGrant,
    pub preset: Option<Contract>,
    /// What its preset leaves out of it.
    pub left_out: LeftOut,
    /// The upstream proxy, with its exceptions.
    pub parent: Option<ParentRule>,
}

impl HttpRoute {
    /// The grant for a call that the route matches.
    pub(crate) fn grant_for(&self, call: &Call<'_>) -> HttpGrant {
        let mut grant = self.grant.clone();
        if let Some(contract) = &self.preset {
            contract.apply(&mut grant, call);
        }
        grant
    }
}

/// One `[[ssh]]`.
#[derive(Debug, Clone)]
pub(crate) struct SshRoute {
    pub name: String,
    pub place: Place,
    pub agents: Names,
    pub host: Pattern,
    pub port: u16,
    pub users: Names,
    pub commands: Option<BTreeSet<String>>,
    /// Whether `*` in commands may stand for characters that a shell acts on.
    pub any_shell: bool,
    pub allow: Allow,
    pub grant: SshGrant,
}

/// What a channel may ask for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Allow {
    pub exec: bool,
    pub shell: bool,
    pub forward: bool,
    pub subsystems: BTreeSet<String>,
}

/// One `[[trust]]`.
#[derive(Debug, Clone)]
pub(crate) struct Trust {
    pub host: Pattern,
    pub ca_file: PathBuf,
}

/// What is defined once and referred to by routes.
struct Shared {
    credentials: BTreeMap<String, Option<Credential>>,
    /// The presets of credentials that name one.
    presets: BTreeMap<String, &'static Preset>,
    used: std::cell::RefCell<BTreeSet<String>>,
    terms: Terms,
    approval: Approval,
    parents: BTreeMap<String, Option<ParentRule>>,
    /// The upstream proxy of `[defaults]`.
    parent: Option<ParentRule>,
}

const DEFAULTS: &[&str] =
    &["egress", "parent", "private_addresses", "repeat_guard", "result", "limits"];
const TRUST: &[&str] = &["host", "ca_file"];
const ROOT: &[&str] = &[
    "defaults",
    "approvals",
    "budget",
    "credential",
    "hashicorp",
    "parent",
    "route",
    "ssh",
    "trust",
];

/// Reads a policy text. The reader keeps what is wrong; the document holds what could be read.
pub(crate) fn read(text: &str, reader: &Reader<'_>) -> Document {
    let Some(root) = syntax::parse(text, reader) else { return Document::default() };
    pasted::find(reader, root.get_ref());
    let span = root.span();
    let root = Fields::new(reader, root.get_ref(), span, "the policy", ROOT);
    let fields = root.table("defaults", DEFAULTS);
    let mut defaults = fields.as_ref().map(read_defaults).unwrap_or_default();
    if let Some(fields) = &fields
        && defaults.egress == Egress::Allow
        && defaults.terms.private_addresses == Some(true)
    {
        let message = "with egress = \"allow\" every agent reaches each port of this machine and of its \
                       network, with the metadata service of a cloud";
        fields.doubtful("private_addresses", message, None);
    }
    let credential::Read { credentials, presets, places } = credential::read(reader, &root);
    let terms = defaults.terms.clone();
    let approvals = approvals::read(&root);
    let approval = approvals.terms;
    let (used, parents, parent) = Default::default();
    let mut shared = Shared { credentials, presets, used, terms, approval, parents, parent };
    shared.parents = parent::read(reader, &root, &shared);
    let chosen = fields.as_ref().and_then(|fields| parent::read_choice(fields, &shared));
    defaults.parent = chosen.flatten();
    shared.parent.clone_from(&defaults.parent);
    let document = Document {
        http: http::read(reader, &root, &shared),
        ssh: ssh::read(reader, &root, &shared),
        trust: read_trust(reader, &root),
        budgets: budget::read(reader, &root),
        parents: shared.parents.values().flatten().cloned().collect(),
        credentials: shared.credentials.values().flatten().cloned().collect(),
        approvals,
        defaults,
    };
    for (id, place) in places {
        if !shared.used.borrow().contains(&id) {
            reader.warn_at(place, format!("credential {id:?} is used by no route"), None);
        }
    }
    document
}

fn read_defaults(fields: &Fields<'_, '_>) -> Defaults {
    let egress = match fields.word("egress", &["deny", "allow", "observe"]) {
        Some(1) => Egress::Allow,
        Some(2) => Egress::Observe,
        Some(_) | None => Egress::Deny,
    };
    let terms = terms::read(fields, &Terms::default(), false);
    Defaults { egress, place: Some(fields.place_of("egress")), terms, parent: None }
}

fn read_trust(reader: &Reader<'_>, root: &Fields<'_, '_>) -> Vec<Trust> {
    let mut trust = Vec::new();
    for (table, span) in root.tables("trust") {
        let fields = Fields::new(reader, table, span, "this [[trust]]", TRUST);
        let host = read_host(&fields, HostPlace::Trust);
        let file = fields.required("ca_file", "\"/etc/ssl/private-ca.pem\"");
        let file = file.map(|f| PathBuf::from(f.value)).filter(|path| {
            let absolute = path.is_absolute();
            if !absolute {
                let hint = "the policy is stored apart from its file; write the whole path";
                fields.wrong("ca_file", "is not an absolute path", Some(hint.to_owned()));
            }
            absolute
        });
        if let (Some(host), Some(ca_file)) = (host, file) {
            trust.push(Trust { host, ca_file });
        }
    }
    trust
}

/// The key `host` of a table.
fn read_host(fields: &Fields<'_, '_>, place: HostPlace) -> Option<Pattern> {
    let text = fields.required("host", "\"api.example.com\"")?;
    match Pattern::parse(text.value) {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            let (message, hint) = host_fault(text.value, error, place);
            fields.wrong("host", message, hint.map(str::to_owned));
            None
        }
    }
}

/// Where a host is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostPlace {
    /// What a route is for.
    Match,
    /// Whose certificates are trusted.
    Trust,
    /// What goes past an upstream proxy.
    NoProxy,
}

/// What is wrong with a text that is no host, and what to write instead.
fn host_fault(text: &str, error: host::Error, place: HostPlace) -> (String, Option<&'static str>) {
    use HostPlace::{Match, NoProxy, Trust};
    if text.contains("://") {
        let hint = match place {
            Match => "write the host alone; scheme, port and path have keys of their own",
            Trust | NoProxy => "write the host alone; it counts for every scheme and port",
        };
        return ("is a URL".to_owned(), Some(hint));
    }
    if text == "*" {
        let hint = match place {
            Match => "`egress = \"allow\"` under [defaults] opens every host",
            Trust => {
                "name each host; what every origin is trusted by are the roots of the system, or of \
                 SSL_CERT_FILE in the server's environment"
            }
            NoProxy => "a route says `parent = \"none\"`",
        };
        return (error.to_string(), Some(hint));
    }
    if error == host::Error::Ipv6 && text.matches(':').count() == 1 {
        let hint = match place {
            Match => "the port has a key of its own: port = 443",
            Trust | NoProxy => "write the host alone; it counts for every port",
        };
        return ("has a port".to_owned(), Some(hint));
    }
    (error.to_string(), None)
}

/// The key `name` of a table: present, well-formed, and not given before.
fn read_name(fields: &Fields<'_, '_>, seen: &mut BTreeMap<String, Place>) -> Option<String> {
    let text = fields.required("name", "\"...\"")?;
    unique(fields, "name", text.value, seen)
}

fn unique(
    fields: &Fields<'_, '_>,
    key: &str,
    text: &str,
    seen: &mut BTreeMap<String, Place>,
) -> Option<String> {
    if !value::is_name(text, 64, b"") {
        let hint = "1 to 64 letters, digits, '.', '_' and '-', a letter or digit first".to_owned();
        fields.wrong(key, "is not a name", Some(hint));
        return None;
    }
    if text == "none" {
        fields.reserved(key, "\"none\" says that there is none");
    }
    if let Some(first) = seen.get(text) {
        fields.wrong(key, format!("{text:?} is there already, at line {}", first.line), None);
        return None;
    }
    seen.insert(text.to_owned(), fields.place());
    Some(text.to_owned())
}

/// What a table is called in messages: by its name where it has one.
fn title(kind: &str, table: &DeTable<'_>, key: &str) -> String {
    match table.get(key).and_then(|v| v.get_ref().as_str()) {
        Some(name) if value::is_name(name, 64, b"") => format!("{kind} {name:?}"),
        Some(_) | None => format!("this [[{kind}]]"),
    }
}

/// The key `agents`: absent or `["*"]`, it stands for every agent.
fn read_agents(fields: &Fields<'_, '_>) -> Names {
    let list = fields.texts("agents")?;
    if let [only] = list.as_slice()
        && only.value == "*"
    {
        return None;
    }
    let mut names = BTreeSet::new();
    for agent in list {
        if value::is_name(agent.value, 64, b"") {
            names.insert(agent.value.to_owned());
        } else {
            fields.wrong_at(agent.offset, "agents", "is not the name of an agent");
        }
    }
    Some(names)
}

/// The key `credential`, resolved.
fn read_credential(fields: &Fields<'_, '_>, shared: &Shared) -> Option<Credential> {
    let id = fields.text("credential")?.value;
    shared.used.borrow_mut().insert(id.to_owned());
    match shared.credentials.get(id) {
        Some(credential) => credential.clone(),
        None => {
            let known = shared.credentials.keys().map(String::as_str);
            let hint = match value::nearest(id, known) {
                Some(near) => format!("did you mean {near:?}?"),
                None => "define it under [[credential]]".to_owned(),
            };
            // A secret pasted in the wrong place is not repeated in the message.
            let shown =
                if value::is_name(id, 32, b"") { format!(" {id:?}") } else { String::new() };
            fields.wrong("credential", format!("there is no credential{shown}"), Some(hint));
            None
        }
    }
}

/// The key `preset`.
fn read_preset(fields: &Fields<'_, '_>) -> Option<&'static Preset> {
    let name = fields.text("preset")?.value;
    let found = Preset::named(name);
    if found.is_none() {
        let names = || PRESETS.iter().map(|p| p.name);
        let hint = match value::nearest(name, names()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("there are {}", names().collect::<Vec<_>>().join(", ")),
        };
        fields.wrong("preset", "is not the name of a preset", Some(hint));
    }
    found
}

/// The key `approval`: how calls wait for a person, if they do.
fn read_approval(fields: &Fields<'_, '_>, shared: &Shared) -> Option<Approval> {
    let required = fields.word("approval", &["none", "required"]) == Some(1);
    if required && fields.truth("intercept") == Some(false) {
        let message = "can't be asked for what is not looked into, so every call is refused";
        fields.doubtful("approval", message, None);
    }
    required.then_some(shared.approval)
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;

#[cfg(test)]
mod schema_tests;
