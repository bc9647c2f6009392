//! Names as Kubernetes takes them, and the one-line forms of lists that an environment variable or a flag can hold.

use std::collections::BTreeMap;

use sandbox::Error;

use crate::config::refuse;

pub(crate) const LABEL_VALUE: &str =
    "a label value: at most 63 of A-Z, a-z, 0-9, -, _ and ., beginning and ending with a letter or a digit";
pub(crate) const SUBDOMAIN: &str =
    "a DNS subdomain: at most 253 of a-z, 0-9, - and ., each part beginning and ending with a letter or a digit";
pub(crate) const DNS_LABEL: &str =
    "a DNS label: at most 63 of a-z, 0-9 and -, beginning and ending with a letter or a digit";
pub(crate) const QUALIFIED: &str = "a qualified name: a DNS subdomain and / before it or not, then at most 63 of A-Z, a-z, 0-9, -, _ \
                                    and ., beginning and ending with a letter or a digit";

fn is_word(text: &str, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || inner(*b))
}

fn is_lower(text: &str) -> bool {
    !text.bytes().any(|b| b.is_ascii_uppercase())
}

pub(crate) fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_lower(text) && is_word(text, |b| b == b'-')
}

pub(crate) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(|part| is_lower(part) && is_word(part, |b| b == b'-'))
}

/// Whether `text` is a label value; the empty one is.
pub(crate) fn is_label_value(text: &str) -> bool {
    text.is_empty() || (text.len() <= 63 && is_word(text, |b| matches!(b, b'-' | b'_' | b'.')))
}

pub(crate) fn is_qualified(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    prefix.is_none_or(is_subdomain) && !name.is_empty() && is_label_value(name)
}

/// Checks a label; the rule that it breaks.
pub(crate) fn check_label(key: &str, value: &str) -> Result<(), &'static str> {
    match (is_qualified(key), is_label_value(value)) {
        (true, true) => Ok(()),
        (false, _) => Err(QUALIFIED),
        (_, false) => Err(LABEL_VALUE),
    }
}

/// Reads the one-line form of [`K8sConfig::node_selector`](crate::K8sConfig::node_selector): `key=value`, separated by commas. A blank
/// line is none.
///
/// # Errors
///
/// [`InvalidSpec`](sandbox::ErrorKind::InvalidSpec), naming the field and quoting the line.
pub fn parse_node_selector(line: &str) -> Result<BTreeMap<String, String>, Error> {
    let mut labels = BTreeMap::new();
    if line.trim().is_empty() {
        return Ok(labels);
    }
    for entry in line.split(',') {
        let Some((key, value)) = entry.split_once('=') else {
            return refuse("node_selector", line, "each entry is key=value");
        };
        let (key, value) = (key.trim(), value.trim());
        check_label(key, value).or_else(|rule| refuse("node_selector", line, rule))?;
        if labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return refuse("node_selector", line, "each key must stand there once");
        }
    }
    Ok(labels)
}

/// Reads the one-line form of [`K8sConfig::image_pull_secrets`](crate::K8sConfig::image_pull_secrets): names of Secrets, separated by
/// commas. A blank line is none.
///
/// # Errors
///
/// [`InvalidSpec`](sandbox::ErrorKind::InvalidSpec), naming the field and quoting the line.
pub fn parse_image_pull_secrets(line: &str) -> Result<Vec<String>, Error> {
    let mut names: Vec<String> = Vec::new();
    if line.trim().is_empty() {
        return Ok(names);
    }
    for name in line.split(',').map(str::trim) {
        if !is_subdomain(name) {
            return refuse("image_pull_secrets", line, format!("each entry is {SUBDOMAIN}"));
        }
        if names.iter().any(|known| known == name) {
            return refuse("image_pull_secrets", line, "each name must stand there once");
        }
        names.push(name.to_owned());
    }
    Ok(names)
}
