//! What a subscriber sees of a call.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolation::fake::FakeBackend;
use isolation::{Backend, ExecOutput, ExecStatus, OpCtx, SlotName};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_core::span::Current;

/// Name, number, number of the span above, and fields.
type Seen = (String, u64, Option<u64>, String);

/// Writes down every span.
#[derive(Clone, Default)]
struct Spans {
    next: Arc<AtomicU64>,
    seen: Arc<Mutex<Vec<Seen>>>,
    entered: Arc<Mutex<Vec<(Id, &'static Metadata<'static>)>>>,
    known: Arc<Mutex<HashMap<u64, &'static Metadata<'static>>>>,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let mut text = Text(String::new());
        span.record(&mut text);
        let seen = (span.metadata().name().to_owned(), number, span.parent().map(Id::into_u64), text.0);
        self.seen.lock().unwrap().push(seen);
        self.known.lock().unwrap().insert(number, span.metadata());
        Id::from_u64(number)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        let metadata = self.known.lock().unwrap()[&id.into_u64()];
        self.entered.lock().unwrap().push((id.clone(), metadata));
    }

    fn exit(&self, _: &Id) {
        self.entered.lock().unwrap().pop();
    }

    fn current_span(&self) -> Current {
        match self.entered.lock().unwrap().last() {
            Some((id, metadata)) => Current::new(id.clone(), metadata),
            None => Current::none(),
        }
    }
}

#[test]
fn a_lifecycle_call_has_a_span_below_its_callers() {
    let spans = Spans::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tracing::subscriber::with_default(spans.clone(), || {
        // The span that is entered when the context is made counts, and not the one of the task that makes the call.
        let ctx = tracing::info_span!("upgrade").in_scope(|| OpCtx::new(Duration::from_secs(10)));
        let fake = FakeBackend::new().with_exec(|_, _| Ok(ExecOutput::new(ExecStatus::Exited(0))));
        runtime.block_on(fake.start(&ctx, &SlotName::new("kube1").unwrap())).unwrap();
    });
    let seen = spans.seen.lock().unwrap();
    let outer = seen.iter().find(|span| span.0 == "upgrade").unwrap();
    let call = seen.iter().find(|span| span.0 == "lifecycle").unwrap();
    assert_eq!(call.2, Some(outer.1));
    assert!(call.3.contains("operation=start") && call.3.contains("slot=kube1"), "{}", call.3);
}
