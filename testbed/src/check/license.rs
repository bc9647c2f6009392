//! Licence expressions: `MIT OR (Apache-2.0 WITH LLVM-exception AND Unicode-3.0)`.

use std::collections::BTreeSet;

/// Whether the licences in `allowed` satisfy the expression. `None` when the expression makes no sense.
pub(crate) fn satisfied(expression: &str, allowed: &BTreeSet<String>) -> Option<bool> {
    // Old manifests write "MIT/Apache-2.0" for "either".
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, allowed };
    let verdict = parser.any_of()?;
    parser.words.is_empty().then_some(verdict)
}

struct Parser<'a> {
    words: &'a [&'a str],
    allowed: &'a BTreeSet<String>,
}

impl Parser<'_> {
    fn any_of(&mut self) -> Option<bool> {
        let mut verdict = self.all_of()?;
        while self.skip("OR") {
            verdict |= self.all_of()?;
        }
        Some(verdict)
    }

    fn all_of(&mut self) -> Option<bool> {
        let mut verdict = self.one()?;
        while self.skip("AND") {
            verdict &= self.one()?;
        }
        Some(verdict)
    }

    fn one(&mut self) -> Option<bool> {
        if self.skip("(") {
            let verdict = self.any_of()?;
            return self.skip(")").then_some(verdict);
        }
        let mut name = self.next()?.to_owned();
        if matches!(name.as_str(), "OR" | "AND" | "WITH" | ")") {
            return None;
        }
        if self.skip("WITH") {
            name = format!("{name} WITH {}", self.next()?);
        }
        Some(self.allowed.contains(&name))
    }

    fn next(&mut self) -> Option<&str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    fn skip(&mut self, word: &str) -> bool {
        match self.words.split_first() {
            Some((first, rest)) if *first == word => {
                self.words = rest;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(expression: &str) -> Option<bool> {
        let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"];
        satisfied(expression, &allowed.map(str::to_owned).into())
    }

    #[test]
    fn expressions() {
        for (expression, want) in [
            ("MIT", Some(true)),
            ("GPL-3.0", Some(false)),
            ("MIT OR GPL-3.0", Some(true)),
            ("GPL-3.0/MIT", Some(true)),
            ("MIT AND GPL-3.0", Some(false)),
            ("GPL-3.0 OR MIT AND Unicode-3.0", Some(true)),
            ("(GPL-3.0 OR MIT) AND Unicode-3.0", Some(true)),
            ("GPL-3.0 AND (MIT OR Unicode-3.0)", Some(false)),
            ("Apache-2.0 WITH LLVM-exception", Some(true)),
            ("MIT WITH LLVM-exception", Some(false)),
            ("", None),
            ("MIT OR", None),
            ("(MIT", None),
            ("MIT Unicode-3.0", None),
            ("OR MIT", None),
        ] {
            assert_eq!(verdict(expression), want, "{expression:?}");
        }
    }
}
