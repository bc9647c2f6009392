//! What is stamped on a Pod, read back.

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sandbox::{Env, Error, ErrorKind, Recreated, SandboxPath, SessionId, Spec};

use crate::config::K8sConfig;
use crate::names::{Key, Keys, NETSETUP, SANDBOX};
use crate::pod::{MAX_NOTE, bound, fingerprint, is_cut_off, networking_label};

/// What a handle needs to know of a Pod.
#[derive(Debug)]
pub(crate) struct Stamp {
    pub(crate) uid: String,
    pub(crate) workdir: SandboxPath,
    pub(crate) env: Env,
    pub(crate) recreated: Option<Recreated>,
}

fn label<'a>(metadata: &'a ObjectMeta, keys: &Keys, key: Key) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(&keys.name(key)).map(String::as_str)
}

pub(crate) fn annotation<'a>(pod: &'a Pod, keys: &Keys, key: Key) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(&keys.name(key)).map(String::as_str)
}

/// Refuses a Pod that has the session's name and is not the session's: the name locates, the labels prove.
pub(crate) fn check_ours(metadata: &ObjectMeta, config: &K8sConfig, session: &SessionId) -> Result<(), Error> {
    let keys = Keys::of(config);
    let name = metadata.name.as_deref().unwrap_or_default();
    for (key, wanted) in [(Key::Session, session.as_str()), (Key::Deployment, &config.deployment)] {
        let found = label(metadata, &keys, key);
        if found != Some(wanted) {
            let found = found.map_or_else(|| "is missing".to_owned(), |value| format!("is {value:?}"));
            return Err(Error::new(ErrorKind::NotOurs)
                .because(format!("pod {name}: its label {} {found}, not {wanted:?}", keys.name(key))));
        }
    }
    Ok(())
}

/// Refuses a Pod that was made to another spec.
pub(crate) fn check_spec(pod: &Pod, config: &K8sConfig, spec: &Spec) -> Result<(), Error> {
    let refuse = |what: &str| Err(Error::new(ErrorKind::SpecMismatch).because(what));
    let keys = Keys::of(config);
    let Some(there) = &pod.spec else { return refuse("the Pod has no spec") };
    let container = sandbox(pod)?;
    // The fingerprint speaks for image, directory and networking, also where something on the way rewrites images. That the
    // network was cut off must show in the Pod itself.
    if annotation(pod, &keys, Key::Fingerprint) != Some(&fingerprint(spec)) {
        return refuse(&differences(pod, container, &keys, spec));
    }
    let cut_off = there.init_containers.iter().flatten().any(|container| container.name == NETSETUP);
    if cut_off != is_cut_off(spec) {
        return refuse("networking");
    }
    if config.runtime_class.is_some() && there.runtime_class_name != config.runtime_class {
        let named =
            |class: &Option<String>| class.as_ref().map_or("the cluster's default".to_owned(), |n| format!("{n:?}"));
        let (is, wanted) = (named(&there.runtime_class_name), named(&config.runtime_class));
        return refuse(&format!("runtime_class is {is}, not {wanted}: reap the session to have it made anew"));
    }
    if check_kept(pod, config).is_err() {
        return refuse("user_namespaces");
    }
    if annotation(pod, &keys, Key::Bound) != Some(&bound(spec)) {
        tracing::warn!(
            session = spec.session.as_str(),
            "the sandbox keeps the variables and the hardening it was made with; the spec has others"
        );
    }
    Ok(())
}

/// Refuses a Pod from which the API server has dropped what it does not know: it says nothing of that.
pub(crate) fn check_kept(pod: &Pod, config: &K8sConfig) -> Result<(), Error> {
    let kept = pod.spec.as_ref().is_some_and(|spec| spec.host_users == Some(false));
    if config.user_namespaces == Some(true) && !kept {
        let why = "user_namespaces: the API server does not know them (it has dropped `hostUsers` from the Pod)";
        return Err(Error::new(ErrorKind::Unsupported).because(why));
    }
    Ok(())
}

/// What is other than asked for, as far as the Pod itself tells: something on the way can have rewritten its image.
fn differences(pod: &Pod, container: &Container, keys: &Keys, spec: &Spec) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    let workdir = container.working_dir.as_deref().unwrap_or_default();
    let networking = label(&pod.metadata, keys, Key::Networking).unwrap_or_default();
    let wanted = spec.workdir.to_string_lossy();
    let pairs = [("image", image, &*spec.image), ("workdir", workdir, &*wanted)];
    let network = ("networking", networking, networking_label(spec));
    let said: Vec<_> = pairs
        .into_iter()
        .chain([network])
        .filter(|(_, is, wanted)| is != wanted)
        .map(|(what, is, wanted)| format!("{what} is {is:?}, not {wanted:?}"))
        .collect();
    if said.is_empty() { "image, workdir, or what networking allows".to_owned() } else { said.join("; ") }
}

/// The container that commands run in.
pub(crate) fn sandbox(pod: &Pod) -> Result<&Container, Error> {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let absent = || Error::new(ErrorKind::SpecMismatch).because("the Pod has no container \"sandbox\"");
    containers.find(|container| container.name == SANDBOX).ok_or_else(absent)
}

/// Why an earlier sandbox is no more, as the Pod tells; what is no such note, as we write it, is none.
pub(crate) fn recreated(pod: &Pod, config: &K8sConfig) -> Option<Recreated> {
    let note = annotation(pod, &Keys::of(config), Key::Recreated).filter(|note| note.len() <= MAX_NOTE)?;
    serde_json::from_str(note).ok()
}

/// Reads what a handle needs.
pub(crate) fn read(pod: &Pod, config: &K8sConfig) -> Result<Stamp, Error> {
    let refuse = |what: &str| Error::new(ErrorKind::SpecMismatch).because(format!("the Pod has {what}"));
    let keys = Keys::of(config);
    let container = sandbox(pod)?;
    let workdir = container.working_dir.as_deref().and_then(|path| SandboxPath::new(path).ok());
    let mut env = Env::new();
    for var in container.env.iter().flatten() {
        if let Some(value) = &var.value {
            // As it was before `$` was doubled.
            env.set(var.name.clone(), value.replace("$$", "$")).map_err(|_| refuse("a variable that is none"))?;
        }
    }
    if let Some(text) = annotation(pod, &keys, Key::Env) {
        let binary: Env = serde_json::from_str(text).map_err(|_| refuse("an annotation of variables that is none"))?;
        for (name, value) in binary.iter() {
            env.set(name, value.clone()).map_err(|_| refuse("a variable that is none"))?;
        }
    }
    let recreated = match annotation(pod, &keys, Key::Recreated) {
        Some(text) => {
            Some(serde_json::from_str(text).map_err(|_| refuse("an annotation of an earlier death that is none"))?)
        }
        None => None,
    };
    Ok(Stamp {
        uid: pod.metadata.uid.clone().ok_or_else(|| refuse("no uid"))?,
        workdir: workdir.ok_or_else(|| refuse("no working directory"))?,
        env,
        recreated,
    })
}

/// The session of an object, unless its label is none.
pub(crate) fn session(metadata: &ObjectMeta, config: &K8sConfig) -> Option<SessionId> {
    SessionId::new(label(metadata, &Keys::of(config), Key::Session)?).ok()
}
