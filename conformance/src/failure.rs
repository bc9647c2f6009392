//! Why a case failed, told so that one can act on it.

use std::fmt;

/// What a case answers: nothing, or why it failed.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Why a case failed: what it did, what it wanted, what it got.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// What the case did, or waited for.
    pub step: String,
    /// What the rule asks for.
    pub want: String,
    /// What came.
    pub got: String,
    reach: Reach,
}

/// How far a case came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// To what its rule says.
    Rule,
    /// Not that far: what it is asked of did not come up.
    Short,
    /// Nowhere: it was not run.
    Nowhere,
}

impl Failure {
    /// A failure of `step`.
    pub fn new(step: impl Into<String>, want: impl Into<String>, got: impl Into<String>) -> Self {
        Self { step: step.into(), want: want.into(), got: got.into(), reach: Reach::Rule }
    }

    /// A case that was not run.
    pub(crate) fn not_run(why: impl fmt::Display) -> Self {
        let got = format!("not run: {why}").replace(char::is_control, " ");
        Self { reach: Reach::Nowhere, ..Self::new("the case", "that it is run", got) }
    }

    /// Says that the case did not come to what its rule says.
    pub(crate) fn before_the_rule(mut self) -> Self {
        if self.reach == Reach::Rule {
            self.reach = Reach::Short;
        }
        self
    }

    /// As it is told of a case with that rule. `more` is about what the case did.
    pub(crate) fn told(&self, rule: &str, more: &str) -> String {
        match self.reach {
            Reach::Rule => format!("rule  {rule}\n{self}{more}"),
            Reach::Short => format!(
                "rule  {rule}\nnote  this rule was not reached: what the case runs on did not come up\n{self}{more}"
            ),
            Reach::Nowhere => self.got.clone(),
        }
    }

    /// Says where in a case with many steps it happened.
    #[must_use]
    pub fn within(mut self, context: impl fmt::Display) -> Self {
        self.step = format!("{context}: {}", self.step);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step  {}\nwant  {}\ngot   {}", self.step, self.want, self.got)
    }
}

/// Fails `step` unless `holds`.
///
/// # Errors
///
/// If it does not hold; `got` is asked only then.
pub fn ensure(holds: bool, step: &str, want: &str, got: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Failure::new(step, want, got())) }
}

/// Fails `step` unless `got` equals `want`.
///
/// # Errors
///
/// If they differ.
pub fn equal<A: PartialEq<B> + fmt::Debug, B: fmt::Debug>(step: &str, got: A, want: B) -> Outcome {
    if got == want { Ok(()) } else { Err(Failure::new(step, short(&want), short(&got))) }
}

/// Fails `step` unless `got` are the bytes `want`, and names the first that differs.
///
/// # Errors
///
/// If they differ.
pub fn same(step: &str, got: &[u8], want: impl AsRef<[u8]>) -> Outcome {
    let want = want.as_ref();
    if got == want {
        return Ok(());
    }
    let at = got.iter().zip(want).position(|(g, w)| g != w).unwrap_or_else(|| got.len().min(want.len()));
    let told = |bytes: &[u8]| {
        let from = at.saturating_sub(40);
        let part = &bytes[from.min(bytes.len())..bytes.len().min(from + 400)];
        let (before, after) = (if from > 0 { "…" } else { "" }, if from + 400 < bytes.len() { "…" } else { "" });
        format!("{before}\"{}\"{after}", part.escape_ascii())
    };
    let got = format!("{} ({} bytes, of {}; they differ at {at})", told(got), got.len(), want.len());
    Err(Failure::new(step, told(want), got))
}

/// `value` in `Debug`, cut where it gets too long to read.
pub fn short(value: &impl fmt::Debug) -> String {
    const MOST: usize = 2000;
    let mut text = format!("{value:?}");
    if text.len() > MOST {
        let cut = (0..=MOST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let whole = text.len();
        text.truncate(cut);
        text.push_str(&format!("… ({whole} bytes)"));
    }
    text
}
