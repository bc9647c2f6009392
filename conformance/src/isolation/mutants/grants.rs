//! What goes wrong with grants, roots and requirements.

use std::path::{Path, PathBuf};

use isolation::{Error, ErrorKind, Grant, GrantKind, HostPath, NodeFs, NodeSpec, OpCtx, Purpose, UnitName, node_path};

use super::Mutant;
use super::hooks::{Hooks, Inner, LyingRoot};

/// A mutant that prepares with other grants than asked.
fn asked(name: &'static str, cases: &'static [&'static str], change: fn(&Inner, Vec<Grant>) -> Vec<Grant>) -> Mutant {
    let prepare = move |i: Inner, ctx: OpCtx, mut spec: NodeSpec| async move {
        spec.grants = change(&i, spec.grants);
        i.backend().prepare(&ctx, &spec).await
    };
    Mutant::new(name, cases, Hooks::new().prepare(prepare))
}

fn lying(name: &'static str, cases: &'static [&'static str], lie: fn(&mut LyingRoot)) -> Mutant {
    let root = move |inner| {
        let mut root = LyingRoot::honest(inner);
        lie(&mut root);
        root
    };
    Mutant::new(name, cases, Hooks::new().root(root))
}

pub(super) fn mutants() -> Vec<Mutant> {
    let mut all = grants();
    all.extend(roots());
    all
}

fn grants() -> Vec<Mutant> {
    vec![
        Mutant::new(
            "one grant is not accounted for",
            &["grants::accounted_for"],
            Hooks::new().prepare(|i, ctx, spec| async move {
                let (root, mut report) = i.backend().prepare(&ctx, &spec).await?;
                report.applied.pop();
                Ok((root, report))
            }),
        ),
        Mutant::new(
            "mounts that are claimed are refused",
            &["grants::accounted_for", "grants::order_of_mounts"],
            Hooks::new().prepare(|i, ctx, spec| async move {
                match spec.grants.iter().position(|grant| grant.kind() == GrantKind::Mount) {
                    Some(at) => Err(Error::new(ErrorKind::GrantUnsupported, "prepare the slot").with_index(at)),
                    None => i.backend().prepare(&ctx, &spec).await,
                }
            }),
        ),
        asked("old grants stay", &["grants::only_the_new_ones"], |i, mut grants| {
            let before = i.recall::<Vec<Grant>>("grants").unwrap_or_default();
            grants.extend(before.into_iter().filter(|old| !grants.contains(old)).collect::<Vec<_>>());
            i.remember("grants", grants.clone());
            grants
        }),
        Mutant::new(
            "a change of grants is not told",
            &["grants::only_the_new_ones"],
            Hooks::new().prepare(|i, ctx, spec| async move {
                let anew = i.root(&spec.slot).is_none_or(|root| !root.dir().exists());
                let (root, mut report) = i.backend().prepare(&ctx, &spec).await?;
                report.changed &= anew;
                Ok((root, report))
            }),
        ),
        asked("the last grant is lost", &["grants::order_of_discovery"], |_, mut grants| {
            grants.pop();
            grants
        }),
        asked("mounts are turned round", &["grants::order_of_mounts"], |_, mut grants| {
            grants.reverse();
            grants
        }),
        asked("invalid grants are left out", &["grants::invalid"], |_, mut grants| {
            grants.retain(|grant| grant.validate().is_ok());
            grants
        }),
        asked("an odd target adds a line", &["grants::no_injection"], |_, mut grants| {
            let odd = grants.iter().any(|grant| grant.target().is_some_and(|t| t.to_string().contains('[')));
            if let (true, Ok(usr)) = (odd, HostPath::new("/usr")) {
                grants.push(Grant::mount(Purpose::HostMount, usr).with_target(node_path!("/mnt/added")));
            }
            grants
        }),
        asked("mounts are only noted", &["grants::mounts_are_visible"], |_, mut grants| {
            grants.retain(|grant| grant.kind() != GrantKind::Mount);
            grants
        }),
        asked("read-only mounts can be written to", &["grants::read_only"], |_, mut grants| {
            for grant in &mut grants {
                if let Grant::Mount(mount) = grant {
                    mount.read_only = false;
                }
            }
            grants
        }),
        asked("devices are only noted", &["grants::devices_are_usable"], |_, mut grants| {
            grants.retain(|grant| grant.kind() != GrantKind::Device);
            grants
        }),
        Mutant::new(
            "paths are declared that are not written",
            &["requirements::paths_are_declared", "requirements::prepare_writes_where_declared"],
            Hooks::new().requirements(|i| {
                let mut needs = i.backend().requirements();
                needs.writable_paths = vec![PathBuf::from("/no/such/place")];
                needs
            }),
        ),
        Mutant::new(
            "a unit to start after is not rendered",
            &["requirements::order_is_rendered"],
            Hooks::new().requirements(|i| {
                let needs = i.backend().requirements();
                UnitName::new("forgotten.service").into_iter().fold(needs, |needs, unit| needs.with_after(unit))
            }),
        ),
    ]
}

fn roots() -> Vec<Mutant> {
    vec![
        Mutant::new(
            "the root is another slot's",
            &["roots::of_the_slot"],
            Hooks::new().root(|inner| {
                let mut root = LyingRoot::honest(inner);
                root.slot = isolation::SlotName::new("another").ok();
                root
            }),
        ),
        lying("paths lead to the host", &["roots::below_the_directory"], |root| {
            root.path = |_, path| path.as_path().to_path_buf();
        }),
        lying("the root is a directory below", &["roots::the_root_itself"], |root| {
            root.path = |inner, path| inner.path(path).join("");
        }),
        lying("case does not matter", &["roots::two_paths_two_files"], |root| {
            root.path = |inner, path| PathBuf::from(inner.path(path).to_string_lossy().to_lowercase());
        }),
        lying("all slots are the second", &["roots::slots_do_not_meet"], |root| {
            root.path = |inner, path| {
                let other = inner.dir().with_file_name("kube2");
                other.join(path.relative())
            };
        }),
        lying("file operations go astray", &["roots::links_stay_inside"], |root| {
            root.fs = |inner| NodeFs::open(inner.dir().parent().unwrap_or(Path::new("/no/such/place")));
        }),
        lying(
            "the inside is elsewhere",
            &["roots::written_outside_read_inside", "roots::written_inside_read_outside"],
            |root| root.inside = |inner, path| inner.inside(path).with_extension("elsewhere"),
        ),
    ]
}
