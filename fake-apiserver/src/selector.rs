//! Label and field selectors.

use serde_json::Value;

use crate::refusal::Refusal;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

/// What a list or a watch is narrowed to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    /// Path in the object, the value, and whether it has to be equal.
    fields: Vec<(&'static str, String, bool)>,
}

impl Selector {
    pub(crate) fn parse(labels: Option<&str>, fields: Option<&str>) -> Result<Self, Refusal> {
        Ok(Self { labels: parse_labels(labels.unwrap_or(""))?, fields: parse_fields(fields.unwrap_or(""))? })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.labels.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => labels[key].as_str().is_some_and(|v| values.iter().any(|w| w == v)),
            Requirement::NotIn(key, values) => !labels[key].as_str().is_some_and(|v| values.iter().any(|w| w == v)),
            Requirement::Exists(key) => labels[key].is_string(),
            Requirement::Absent(key) => !labels[key].is_string(),
        }) && self.fields.iter().all(|(pointer, value, equal)| {
            let found = object.pointer(pointer).and_then(Value::as_str).unwrap_or("");
            (found == value) == *equal
        })
    }
}

fn bad(text: &str) -> Refusal {
    Refusal::bad_request(format!("unable to parse requirement: {text:?}"))
}

/// Splits at commas that stand outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_i32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, Refusal> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    split(text).into_iter().map(parse_requirement).collect()
}

fn parse_requirement(text: &str) -> Result<Requirement, Refusal> {
    if let Some(open) = text.find('(') {
        let list = text[open + 1..].strip_suffix(')').ok_or_else(|| bad(text))?;
        let mut words = text[..open].split_whitespace();
        let (Some(key), Some(operator), None) = (words.next(), words.next(), words.next()) else {
            return Err(bad(text));
        };
        let values = list.split(',').map(|v| value(v, text)).collect::<Result<Vec<_>, _>>()?;
        return match operator {
            "in" => Ok(Requirement::In(checked_key(key, text)?, values)),
            "notin" => Ok(Requirement::NotIn(checked_key(key, text)?, values)),
            _ => Err(bad(text)),
        };
    }
    if let Some((key, wanted)) = text.split_once("!=") {
        return Ok(Requirement::NotIn(checked_key(key, text)?, vec![value(wanted, text)?]));
    }
    if let Some((key, wanted)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Ok(Requirement::In(checked_key(key, text)?, vec![value(wanted, text)?]));
    }
    match text.strip_prefix('!') {
        Some(key) => Ok(Requirement::Absent(checked_key(key, text)?)),
        None => Ok(Requirement::Exists(checked_key(text, text)?)),
    }
}

fn checked_key(key: &str, text: &str) -> Result<String, Refusal> {
    let key = key.trim();
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if key.is_empty() || !key.chars().all(legal) {
        return Err(bad(text));
    }
    Ok(key.to_owned())
}

fn value(text: &str, whole: &str) -> Result<String, Refusal> {
    let text = text.trim();
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.len() > 63 || !text.chars().all(legal) {
        return Err(bad(whole));
    }
    Ok(text.to_owned())
}

fn parse_fields(text: &str) -> Result<Vec<(&'static str, String, bool)>, Refusal> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    text.split(',')
        .map(|part| {
            let (field, wanted, equal) = match part.split_once("!=") {
                Some((field, wanted)) => (field, wanted, false),
                None => {
                    let (field, wanted) =
                        part.split_once("==").or_else(|| part.split_once('=')).ok_or_else(|| bad(part))?;
                    (field, wanted, true)
                }
            };
            let pointer = match field.trim() {
                "metadata.name" => "/metadata/name",
                "metadata.namespace" => "/metadata/namespace",
                "spec.nodeName" => "/spec/nodeName",
                "status.phase" => "/status/phase",
                "involvedObject.name" => "/involvedObject/name",
                "involvedObject.uid" => "/involvedObject/uid",
                other => return Err(Refusal::bad_request(format!("field label not supported: {other}"))),
            };
            Ok((pointer, wanted.trim().to_owned(), equal))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn holds(labels: &str, fields: &str) -> bool {
        let pod = json!({
            "metadata": {"name": "a", "namespace": "ns", "labels": {"x.dev/app": "one", "tier": "back", "empty": ""}},
            "status": {"phase": "Running"},
        });
        Selector::parse(Some(labels), Some(fields)).unwrap().matches(&pod)
    }

    #[test]
    fn label_requirements() {
        let table = [
            ("", true),
            ("x.dev/app=one", true),
            ("x.dev/app==one,tier=back", true),
            ("x.dev/app=two", false),
            ("x.dev/app=one,tier=front", false),
            ("tier in (front, back)", true),
            ("tier in (front)", false),
            ("tier notin (front,side)", true),
            ("absent notin (front)", true),
            ("tier!=back", false),
            ("absent!=back", true),
            ("tier", true),
            ("empty", true),
            ("empty=", true),
            ("absent", false),
            ("!absent", true),
            ("!tier", false),
            ("tier in (back),x.dev/app", true),
        ];
        for (selector, want) in table {
            assert_eq!(holds(selector, ""), want, "{selector:?}");
        }
    }

    #[test]
    fn field_requirements() {
        assert!(holds("", "metadata.name=a,status.phase!=Failed"));
        assert!(!holds("", "metadata.name=b"));
        assert!(!holds("", "metadata.namespace!=ns"));
    }

    #[test]
    fn garbage_is_refused() {
        for text in ["a in", "a in (b", "a near (b)", "=b", "a=b c", "a=b,,c", "a b", "a=(b)"] {
            assert!(Selector::parse(Some(text), None).is_err(), "{text:?}");
        }
        assert!(Selector::parse(None, Some("spec.colour=red")).is_err());
        assert!(Selector::parse(None, Some("nonsense")).is_err());
    }
}
