//! Which requests are meant.

use crate::call::{Call, Verb};

/// Which requests are meant: by what they do and to what.
///
/// What is not said matches everything. A name or a namespace that ends in `*` matches every name that begins so.
///
/// ```
/// use fake_apiserver::{On, Verb};
///
/// let creates = On::verb(Verb::Create).resource("pods").name("worker-*");
/// let execs = On::exec();
/// # drop((creates, execs));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct On {
    verb: Option<Verb>,
    resource: Option<String>,
    subresource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
}

impl On {
    /// Every request.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// Requests that do this.
    #[must_use]
    pub fn verb(verb: Verb) -> Self {
        Self { verb: Some(verb), ..Self::default() }
    }

    /// Requests that do this to pods themselves, not to a subresource.
    #[must_use]
    pub fn pods(verb: Verb) -> Self {
        Self::verb(verb).resource("pods").subresource("")
    }

    /// Requests for a command in a pod.
    #[must_use]
    pub fn exec() -> Self {
        Self::verb(Verb::Connect).resource("pods").subresource("exec")
    }

    /// Only this kind of object: `pods`, `nodes`, `namespaces`, `selfsubjectaccessreviews`; `version` for `/version`.
    #[must_use]
    pub fn resource(mut self, resource: &str) -> Self {
        self.resource = Some(resource.to_owned());
        self
    }

    /// Only this subresource; the empty name is the object itself.
    #[must_use]
    pub fn subresource(mut self, subresource: &str) -> Self {
        self.subresource = Some(subresource.to_owned());
        self
    }

    /// Only in this namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// Only the object of this name. For a create, the name is the one in the body.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    pub(crate) fn matches(&self, call: &Call) -> bool {
        self.fits(
            call.verb,
            &call.resource,
            call.subresource.as_deref(),
            call.namespace.as_deref(),
            call.name.as_deref(),
        )
    }

    pub(crate) fn fits(
        &self,
        verb: Verb,
        resource: &str,
        subresource: Option<&str>,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> bool {
        self.verb.is_none_or(|wanted| wanted == verb)
            && exactly(self.resource.as_deref(), resource)
            && exactly(self.subresource.as_deref(), subresource.unwrap_or(""))
            && pattern(self.namespace.as_deref(), namespace.unwrap_or(""))
            && pattern(self.name.as_deref(), name.unwrap_or(""))
    }
}

fn exactly(wanted: Option<&str>, found: &str) -> bool {
    wanted.is_none_or(|wanted| wanted == found)
}

fn pattern(wanted: Option<&str>, found: &str) -> bool {
    wanted.is_none_or(|wanted| match wanted.strip_suffix('*') {
        Some(prefix) => found.starts_with(prefix),
        None => wanted == found,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_narrows() {
        let fits = |on: On| on.fits(Verb::Get, "pods", None, Some("ns"), Some("worker-1"));
        assert!(fits(On::any()));
        assert!(fits(On::pods(Verb::Get).namespace("ns").name("worker-1")));
        assert!(fits(On::any().name("worker-*")));
        assert!(!fits(On::any().name("worker")));
        assert!(!fits(On::verb(Verb::List)));
        assert!(!fits(On::any().resource("nodes")));
        assert!(!fits(On::any().subresource("exec")));
        assert!(!fits(On::any().namespace("other")));
    }
}
