//! JSON merge patch (RFC 7386).

use serde_json::{Map, Value};

/// Applies `patch` to `target`: objects are merged, null removes, everything else replaces.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merges_removes_and_replaces() {
        let mut object = json!({"a": {"b": 1, "c": 2}, "list": [1, 2]});
        merge(&mut object, &json!({"a": {"b": null, "d": {"e": 3}}, "list": [3]}));
        assert_eq!(object, json!({"a": {"c": 2, "d": {"e": 3}}, "list": [3]}));
    }
}
