//! A backend whose sandboxes do not come up: the run says so, and does not wait for each of them.

mod plain;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use conformance::sandbox::Setup;
use conformance::{Options, Report, Verdict};
use sandbox::{
    Capabilities, Error, ErrorKind, ExportStream, OwnedStream, Provider, Sandbox, SandboxPath, SessionId, Spec,
    async_trait,
};

/// Makes only the sandboxes that it is told to make, counted from the first.
#[derive(Debug)]
struct Barren {
    inner: Arc<dyn Provider>,
    asked: Arc<AtomicUsize>,
    makes: fn(usize) -> bool,
}

#[async_trait]
impl Provider for Barren {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn provision(&self, spec: &Spec) -> Result<Arc<dyn Sandbox>, Error> {
        match (self.makes)(self.asked.fetch_add(1, Ordering::Relaxed)) {
            true => self.inner.provision(spec).await,
            false => Err(Error::new(ErrorKind::Protocol).because("the streams are\nswapped")),
        }
    }

    async fn attach(&self, session: &SessionId) -> Result<Arc<dyn Sandbox>, Error> {
        self.inner.attach(session).await
    }

    async fn owned(&self) -> Result<OwnedStream, Error> {
        self.inner.owned().await
    }

    async fn reap(&self, session: &SessionId) -> Result<(), Error> {
        self.inner.reap(session).await
    }

    async fn export(&self, session: &SessionId, root: &SandboxPath) -> Result<ExportStream, Error> {
        self.inner.export(session, root).await
    }
}

/// What `part` of the suite finds, and how many sandboxes it asked for.
async fn found(part: &str, makes: fn(usize) -> bool) -> (Report, usize) {
    let (world, asked) = (plain::World::new(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&asked);
    let setup = Setup::new("barren", move || {
        let barren = Barren { inner: world.provider(), asked: Arc::clone(&counted), makes };
        async move { Ok(Arc::new(barren) as Arc<dyn Provider>) }
    });
    let mut options = Options::default().with_only(part);
    options.threads = 1;
    let report = conformance::run(setup, options).await;
    (report, asked.load(Ordering::Relaxed))
}

fn texts(report: &Report) -> Vec<&str> {
    let failed = report.cases.iter().filter(|case| matches!(case.verdict, Verdict::Failed(_)));
    failed.map(|case| case.verdict.text()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_sandbox_comes_up_the_run_ends_with_the_third() {
    let (report, asked) = found("exec::", |_| false).await;
    assert_eq!(asked, 3);
    let texts = texts(&report);
    assert!(texts.len() > 20 && texts.len() == report.cases.len(), "{texts:?}");
    let (not_run, tried) = texts.iter().partition::<Vec<&str>, _>(|text| text.starts_with("not run: "));
    assert_eq!(tried.len(), 3);
    for text in tried {
        assert!(text.contains("\nnote  this rule was not reached: ") && text.contains("\nstep  provision\n"), "{text}");
    }
    for text in not_run {
        let told = "no sandbox has come up yet (3 provisions failed; first error: Error { kind: Protocol, ";
        assert!(text.contains(told) && text.contains("swapped") && !text.contains('\n'), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn once_a_sandbox_came_up_every_case_is_run() {
    let (report, asked) = found("exec::", |n| n == 1).await;
    let texts = texts(&report);
    assert_eq!((asked, texts.len()), (report.cases.len(), report.cases.len() - 1), "{texts:?}");
    assert!(texts.iter().all(|text| text.contains("\nnote  this rule was not reached: ")), "{texts:?}");
}

/// A second provision is what the rule of such a case is about.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_provision_that_fails_is_told_of_the_rule() {
    let (report, asked) = found("provision::twice_is_one", |n| n == 0).await;
    let texts = texts(&report);
    assert_eq!((asked, texts.len()), (2, 1));
    assert!(texts[0].contains("step  provision") && !texts[0].contains("note  "), "{}", texts[0]);
}
