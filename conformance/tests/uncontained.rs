//! A backend whose commands run beside the test itself is refused before any case runs anything in it.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use conformance::sandbox::Setup;
use conformance::{Options, Verdict};
use sandbox::{
    Capabilities, Command, Error, ErrorKind, ExecRequest, ExecResult, ExportStream, FileBatch, FileWrite, Output,
    OwnedStream, Process, Provider, ReadStream, Recreated, Sandbox, SandboxPath, SessionId, SpawnRequest, Spec,
    async_trait,
};

/// Runs only the question where it is, in a shell on this machine; notes everything that it was asked to run.
#[derive(Debug, Clone, Default)]
struct Here {
    session: Option<SessionId>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Here {
    fn handle(&self, session: &SessionId) -> Arc<dyn Sandbox> {
        Arc::new(Self { session: Some(session.clone()), ..self.clone() })
    }
}

fn unsupported<T>() -> Result<T, Error> {
    Err(Error::new(ErrorKind::Unsupported))
}

#[async_trait]
impl Provider for Here {
    fn capabilities(&self) -> Capabilities {
        let mut claims = Capabilities::default();
        claims.networking_unrestricted = true;
        claims
    }

    async fn provision(&self, spec: &Spec) -> Result<Arc<dyn Sandbox>, Error> {
        Ok(self.handle(&spec.session))
    }

    async fn attach(&self, session: &SessionId) -> Result<Arc<dyn Sandbox>, Error> {
        Ok(self.handle(session))
    }

    async fn owned(&self) -> Result<OwnedStream, Error> {
        Ok(OwnedStream::new(futures::stream::empty()))
    }

    async fn reap(&self, _: &SessionId) -> Result<(), Error> {
        Ok(())
    }

    async fn export(&self, _: &SessionId, _: &SandboxPath) -> Result<ExportStream, Error> {
        unsupported()
    }
}

#[async_trait]
impl Sandbox for Here {
    fn id(&self) -> &SessionId {
        self.session.as_ref().unwrap()
    }

    fn recreated(&self) -> Option<&Recreated> {
        None
    }

    async fn exec(&self, request: ExecRequest) -> Result<ExecResult, Error> {
        let Command::Shell(text) = &request.command else { return unsupported() };
        let text = String::from_utf8_lossy(text).into_owned();
        self.asked.lock().unwrap().push(text.clone());
        if !text.starts_with("readlink /proc/self/ns/pid;") {
            return unsupported();
        }
        let output = tokio::process::Command::new("bash").args(["-c", &text]).output().await.unwrap();
        let all = |bytes: Vec<u8>| Output::new(bytes.clone(), bytes.len() as u64);
        Ok(ExecResult::new(0, false, all(output.stdout), all(output.stderr), std::time::Duration::ZERO))
    }

    async fn spawn(&self, _: SpawnRequest) -> Result<Process, Error> {
        unsupported()
    }

    async fn read(&self, _: &SandboxPath, _: u64) -> Result<ReadStream, Error> {
        unsupported()
    }

    async fn write(&self, _: FileWrite<'_>) -> Result<(), Error> {
        unsupported()
    }

    async fn write_many(&self, _: FileBatch<'_>) -> Result<(), Error> {
        unsupported()
    }

    async fn destroy(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[tokio::test]
async fn nothing_runs_beside_the_test() {
    let here = Here::default();
    let asked = Arc::clone(&here.asked);
    let setup = Setup::new("here", move || {
        let here = here.clone();
        async move { Ok(Arc::new(here) as Arc<dyn Provider>) }
    });
    let report = conformance::run(setup, Options::default().with_only("limit::").with_only("hostile::")).await;
    let ran: Vec<_> = report.cases.iter().filter(|case| !matches!(case.verdict, Verdict::NotApplicable(_))).collect();
    assert!(ran.len() > 20);
    for case in ran {
        let Verdict::Failed(text) = &case.verdict else { panic!("{}: {:?}", case.id, case.verdict) };
        assert!(text.contains("the pid namespace of this test: nothing was run"), "{}: {text}", case.id);
    }
    assert_eq!(asked.lock().unwrap().len(), 1, "{asked:?}");
}

#[tokio::test]
async fn facts_are_looked_up_once_and_stand_in_the_report() {
    let asked = Arc::new(Mutex::new(0));
    let count = Arc::clone(&asked);
    let setup = Setup::new("here", || async { Ok(Arc::new(Here::default()) as Arc<dyn Provider>) })
        .with_fact("said", "before")
        .with_facts(move || {
            *count.lock().unwrap() += 1;
            async { std::collections::BTreeMap::from([("looked up".to_owned(), "1.2 <3>".to_owned())]) }
        });
    let report = conformance::run(setup, Options::default().with_only("limit::")).await;
    assert_eq!(*asked.lock().unwrap(), 1);
    let fact = |name: &str| report.facts.get(name).map(String::as_str);
    assert_eq!((fact("said"), fact("looked up"), fact("image")), (Some("before"), Some("1.2 <3>"), Some("host")));
    let (markdown, html) = (report.to_markdown(), report.to_html());
    assert!(markdown.contains("| looked up | 1.2 &lt;3> |") && html.contains("1.2 &lt;3&gt;"), "{markdown}\n{html}");
}
