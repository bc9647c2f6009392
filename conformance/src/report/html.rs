//! A report as one page that needs nothing else.

use super::Report;

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #cf222e; --dim: #777; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p.badge { margin: .3rem 0 1.2rem; color: var(--dim); }
.tables { display: flex; flex-wrap: wrap; gap: 2rem; align-items: start; }
table { border-collapse: collapse; } td, th { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
table.cases { width: 100%; } td.id { font-family: ui-monospace, monospace; font-size: .85em; overflow-wrap: anywhere; min-width: 16rem; }
.passed { color: var(--good); } .failed { color: var(--bad); font-weight: 600; }
.not-applicable, .left-out, .absent { color: var(--dim); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border-left: 3px solid var(--bad); padding: .4rem .8rem; margin: .3rem 0; font-size: .85em; }
";

impl Report {
    /// As one HTML page without scripts or other files.
    #[must_use]
    pub fn to_html(&self) -> String {
        let title = format!("Conformance of {}", escape(&self.backend));
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
             <h1>{title}</h1>\n<p class=\"badge\">{}, {}</p>\n<div class=\"tables\">\n",
            escape(&self.badge()),
            self.date()
        );
        out.push_str(
            "<table>\n<tr><th>profile<th class=\"n\">passed<th class=\"n\">failed<th class=\"n\">n/a\
             <th class=\"n\">not run\n",
        );
        for (profile, c) in self.profiles() {
            out.push_str(&format!("<tr><td>{}", escape(&profile)));
            for n in [c.passed, c.failed, c.not_applicable, c.not_run] {
                out.push_str(&format!("<td class=\"n\">{n}"));
            }
            out.push('\n');
        }
        out.push_str("</table>\n");
        self.facts_table(&mut out);
        out.push_str("</div>\n");
        if self.failures().next().is_some() {
            out.push_str("<h2>Failed</h2>\n");
        }
        for case in self.failures() {
            let (id, text) = (escape(&case.id), escape(case.verdict.text()));
            out.push_str(&format!("<h3 id=\"{id}\">{id}</h3>\n<pre>{text}</pre>\n"));
        }
        out.push_str(
            "<h2>Cases</h2>\n<table class=\"cases\">\n<tr><th>case<th>rule<th>verdict<th class=\"n\">seconds\n",
        );
        for case in &self.cases {
            let (word, told) = (case.verdict.word(), case.told());
            let text = match case.verdict.text() {
                "" => told,
                _ if word == "failed" => format!("<a class=\"failed\" href=\"#{}\">{told}</a>", escape(&case.id)),
                reason => format!("{told}: {}", escape(reason)),
            };
            out.push_str(&format!(
                "<tr><td class=\"id\">{}<td>{}<td class=\"{}\">{text}<td class=\"n\">{:.2}\n",
                escape(&case.id),
                escape(&case.rule),
                word.replace(' ', "-"),
                case.seconds
            ));
        }
        out.push_str("</table>\n");
        if self.unproved().next().is_some() {
            out.push_str(&format!("<p>{}\n", super::UNPROVED));
        }
        out.push_str("</html>\n");
        out
    }

    fn facts_table(&self, out: &mut String) {
        out.push_str("<table>\n<tr><th>where<th>\n");
        for (name, value) in &self.facts {
            out.push_str(&format!("<tr><td>{}<td>{}\n", escape(name), escape(value)));
        }
        let claimed = |claim| {
            let names = self.claims.iter().filter(|(_, made)| **made == claim).map(|(name, _)| escape(name));
            names.collect::<Vec<_>>().join(", ")
        };
        out.push_str(&format!("<tr><td>claimed<td>{}\n<tr><td>not claimed<td>{}\n", claimed(true), claimed(false)));
        out.push_str("</table>\n");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn hostile_text_stays_text() {
        let page = crate::report::tests::report().to_html();
        assert!(page.contains("A rule | with &lt;marks&gt;."), "{page}");
        assert!(page.contains("want  &lt;1&gt;"), "{page}");
        assert!(page.contains(">not applicable, unproved: no files<") && page.contains("<p>Unproved: "), "{page}");
        assert!(!page.contains("<script") && !page.contains("http"), "the page needs nothing else");
    }
}
