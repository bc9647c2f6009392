//! What a request asks for: its path and query, taken apart.

use http::Method;

/// What a request does, in the words of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// Reads one object.
    Get,
    /// Reads a collection.
    List,
    /// Follows a collection.
    Watch,
    /// Makes an object.
    Create,
    /// Changes an object by a patch.
    Patch,
    /// Removes an object.
    Delete,
    /// Opens a stream: `pods/exec`.
    Connect,
    /// Anything else: a method or a path that this server does not know.
    Other,
}

impl Verb {
    /// The word that access rules use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::Connect => "connect",
            Self::Other => "other",
        }
    }
}

/// One request, taken apart.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) verb: Verb,
    pub(crate) resource: String,
    pub(crate) subresource: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) query: Query,
}

impl Call {
    pub(crate) fn parse(method: &Method, path: &str, query: &str) -> Self {
        let query = Query::parse(query);
        let parts: Vec<String> = path.split('/').filter(|p| !p.is_empty()).map(decode).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let mut call = Self {
            verb: Verb::Other,
            resource: parts.join("/"),
            subresource: None,
            namespace: None,
            name: None,
            query,
        };
        let own = |text: &str| Some(text.to_owned());
        let rest = match parts.as_slice() {
            ["api", "v1", rest @ ..] => rest,
            ["apis", _group, _version, rest @ ..] => rest,
            [] => return call,
            _ => {
                if method == Method::GET {
                    call.verb = Verb::Get;
                }
                return call;
            }
        };
        let known = match rest {
            ["namespaces", namespace, resource, tail @ ..]
                if !matches!(*resource, "status" | "finalize") && tail.len() <= 2 =>
            {
                call.namespace = own(namespace);
                call.resource = (*resource).to_owned();
                call.name = tail.first().map(|name| (*name).to_owned());
                call.subresource = tail.get(1).map(|sub| (*sub).to_owned());
                true
            }
            [resource, tail @ ..] if tail.len() <= 2 => {
                call.resource = (*resource).to_owned();
                call.name = tail.first().map(|name| (*name).to_owned());
                call.subresource = tail.get(1).map(|sub| (*sub).to_owned());
                true
            }
            _ => false,
        };
        if known {
            call.verb = call.verb_of(method);
        }
        call
    }

    fn verb_of(&self, method: &Method) -> Verb {
        let collection = self.name.is_none();
        if matches!(self.subresource.as_deref(), Some("exec" | "attach" | "portforward")) {
            return if matches!(*method, Method::GET | Method::POST) { Verb::Connect } else { Verb::Other };
        }
        match *method {
            Method::GET if collection && self.query.flag("watch") => Verb::Watch,
            Method::GET if collection => Verb::List,
            Method::GET => Verb::Get,
            Method::POST if collection => Verb::Create,
            Method::PATCH if !collection => Verb::Patch,
            Method::DELETE if !collection => Verb::Delete,
            _ => Verb::Other,
        }
    }

    /// `pods` or `pods/exec`, as access rules name it.
    pub(crate) fn full_resource(&self) -> String {
        match &self.subresource {
            Some(sub) => format!("{}/{sub}", self.resource),
            None => self.resource.clone(),
        }
    }
}

/// The decoded pairs of a query.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(&key.replace('+', " ")), decode(&value.replace('+', " ")))
        });
        Self(pairs.collect())
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    pub(crate) fn all(&self, key: &str) -> Vec<String> {
        self.0.iter().filter(|(k, _)| k == key).map(|(_, value)| value.clone()).collect()
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        matches!(self.get(key), Some("true" | "1"))
    }
}

/// Undoes percent encoding.
pub(crate) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |i: usize| bytes.get(i).and_then(|b| (*b as char).to_digit(16));
        match (bytes[at], hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &Method, target: &str) -> Call {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Call::parse(method, path, query)
    }

    #[test]
    fn paths_become_verbs() {
        let table = [
            (Method::GET, "/api/v1/namespaces/n/pods", Verb::List, "pods", None),
            (Method::GET, "/api/v1/pods?watch=1", Verb::Watch, "pods", None),
            (Method::GET, "/api/v1/namespaces/n/pods?watch=true", Verb::Watch, "pods", None),
            (Method::GET, "/api/v1/namespaces/n/pods/a", Verb::Get, "pods", Some("a")),
            (Method::POST, "/api/v1/namespaces/n/pods", Verb::Create, "pods", None),
            (Method::PATCH, "/api/v1/namespaces/n/pods/a", Verb::Patch, "pods", Some("a")),
            (Method::DELETE, "/api/v1/namespaces/n/pods/a", Verb::Delete, "pods", Some("a")),
            (Method::GET, "/api/v1/namespaces/n/pods/a/exec", Verb::Connect, "pods", Some("a")),
            (Method::GET, "/api/v1/namespaces/n", Verb::Get, "namespaces", Some("n")),
            (Method::GET, "/api/v1/nodes/x", Verb::Get, "nodes", Some("x")),
            (Method::DELETE, "/api/v1/namespaces/n/pods", Verb::Other, "pods", None),
            (Method::GET, "/version", Verb::Get, "version", None),
        ];
        for (method, target, verb, resource, name) in table {
            let call = call(&method, target);
            assert_eq!((call.verb, call.resource.as_str(), call.name.as_deref()), (verb, resource, name), "{target}");
        }
    }

    #[test]
    fn queries_are_decoded_in_order() {
        let call = call(&Method::GET, "/api/v1/namespaces/n/pods/a/exec?command=bash&command=-c&command=a%20b%2B+%26");
        assert_eq!(call.query.all("command"), ["bash", "-c", "a b+ &"]);
        assert_eq!(call.full_resource(), "pods/exec");
    }
}
