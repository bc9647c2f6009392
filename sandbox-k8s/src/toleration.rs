//! Tolerations.

use std::fmt;

use sandbox::Error;
use serde::{Deserialize, Serialize};

use crate::config::refuse;
use crate::grammar;

/// A taint that the Pods stand, in the words of the Kubernetes API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Toleration {
    /// The key of the taint; `None` is any, with [`TolerationOperator::Exists`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How the value is compared; `None` is [`TolerationOperator::Equal`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    /// What the value of the taint is compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The effect of the taint; `None` is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// For how many seconds a `NoExecute` taint is stood; `None` is for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// How a [`Toleration`] compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TolerationOperator {
    /// The values are the same.
    Equal,
    /// Any value.
    Exists,
    /// The taint's value is a smaller number. A cluster may not know it.
    Lt,
    /// The taint's value is a larger number. A cluster may not know it.
    Gt,
}

/// What a taint does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TaintEffect {
    /// Keeps Pods away.
    NoSchedule,
    /// Keeps Pods away where there is another place.
    PreferNoSchedule,
    /// Keeps Pods away, and drives them out.
    NoExecute,
}

impl fmt::Display for TolerationOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Display for TaintEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Toleration {
    /// Checks it as an API server does; the rule that it breaks.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        use TolerationOperator::{Equal, Exists, Gt, Lt};
        let operator = self.operator.unwrap_or(Equal);
        match self.key.as_deref().unwrap_or_default() {
            "" if operator != Exists => return Err("without a key the operator is Exists"),
            "" => {}
            key if !grammar::is_qualified(key) => return Err(grammar::QUALIFIED),
            _ => {}
        }
        let value = self.value.as_deref().unwrap_or_default();
        match operator {
            Exists if !value.is_empty() => return Err("Exists takes no value"),
            Equal if !grammar::is_label_value(value) => return Err(grammar::LABEL_VALUE),
            // As it is written again: no leading zero, no plus, no minus zero.
            Lt | Gt if value.parse::<i64>().map(|n| n.to_string()) != Ok(value.to_owned()) => {
                return Err("Lt and Gt take a decimal number of 64 bits");
            }
            _ => {}
        }
        if self.toleration_seconds.is_some() && self.effect != Some(TaintEffect::NoExecute) {
            return Err("tolerationSeconds goes with NoExecute alone");
        }
        Ok(())
    }

    /// As JSON, for messages.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Reads the one-line form of [`K8sConfig::tolerations`](crate::K8sConfig::tolerations): a JSON array of the API's Tolerations. A blank
/// line is none.
///
/// # Errors
///
/// [`InvalidSpec`](sandbox::ErrorKind::InvalidSpec), naming the field and quoting the line.
pub fn parse_tolerations(line: &str) -> Result<Vec<Toleration>, Error> {
    if line.trim().is_empty() {
        return Ok(Vec::new());
    }
    let tolerations: Vec<Toleration> = match serde_json::from_str(line) {
        Ok(tolerations) => tolerations,
        Err(error) => return refuse("tolerations", line, format!("a JSON array of Tolerations: {error}")),
    };
    for toleration in &tolerations {
        toleration.check().or_else(|rule| refuse("tolerations", line, rule))?;
    }
    Ok(tolerations)
}
