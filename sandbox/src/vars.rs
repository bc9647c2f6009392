//! Hardening from a deployment's variables.

use crate::id::quoted;
use crate::{CapDrop, Error, ErrorKind, Hardening, Limit};

impl Hardening {
    /// Reads a deployment's defaults from its variables, looked up through `var` (`|name| std::env::var(name).ok()` in a program;
    /// a library reads no environment by itself).
    ///
    /// Unset or empty is [`Hardening::default`]'s value. `SANDBOX_PIDS_LIMIT`, `SANDBOX_CPU_MILLIS`, `SANDBOX_MEMORY_BYTES` and
    /// `SANDBOX_EPHEMERAL_STORAGE_BYTES` are whole numbers, 0 for no bound, and a number that is set is
    /// [`Required`](Limit::Required); `SANDBOX_CAP_DROP` is as in [`CapDrop::parse`]; `SANDBOX_READONLY_ROOTFS` is `true` or
    /// `false`; `SANDBOX_RUN_AS_USER` is a number of which 0 is root.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSpec`], naming the variable, its value and the rule. A malformed value never falls back to a default.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let mut hardening = Self::default();
        let given = |name: &str| var(name).filter(|value| !value.is_empty());
        let refuse = |name: &str, value: &str, rule: &str| {
            Error::new(ErrorKind::InvalidSpec).because(format!("{name} {}: {rule}", quoted(value.as_bytes())))
        };
        for (name, field) in [
            ("SANDBOX_PIDS_LIMIT", &mut hardening.pids),
            ("SANDBOX_CPU_MILLIS", &mut hardening.cpu_millis),
            ("SANDBOX_MEMORY_BYTES", &mut hardening.memory_bytes),
            ("SANDBOX_EPHEMERAL_STORAGE_BYTES", &mut hardening.disk_bytes),
        ] {
            let Some(value) = given(name) else { continue };
            let digits = value.bytes().all(|b| b.is_ascii_digit());
            let number = value.parse::<u64>().ok().filter(|_| digits);
            *field = match number.ok_or_else(|| refuse(name, &value, "a whole number without a unit"))? {
                0 => Limit::Off,
                n => Limit::Required(n),
            };
        }
        if let Some(value) = given("SANDBOX_CAP_DROP") {
            hardening.cap_drop = CapDrop::parse(&value)
                .map_err(|e| refuse("SANDBOX_CAP_DROP", &value, e.reason().unwrap_or_default()))?;
        }
        if let Some(value) = given("SANDBOX_READONLY_ROOTFS") {
            hardening.read_only_root =
                value.parse().map_err(|_| refuse("SANDBOX_READONLY_ROOTFS", &value, "true or false"))?;
        }
        if let Some(value) = given("SANDBOX_RUN_AS_USER") {
            let digits = value.bytes().all(|b| b.is_ascii_digit());
            let uid = value.parse::<u32>().ok().filter(|uid| digits && *uid <= Self::MAX_ID);
            hardening.run_as_user =
                Some(uid.ok_or_else(|| refuse("SANDBOX_RUN_AS_USER", &value, "a number from 0 to 2147483647"))?);
        }
        hardening.validate()?;
        Ok(hardening)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<Hardening, Error> {
        Hardening::from_vars(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn unset_and_empty_are_the_default_and_0_turns_a_bound_off() {
        assert_eq!(Hardening::from_vars(|_| None).unwrap(), Hardening::default());
        assert_eq!(Hardening::from_vars(|_| Some(String::new())).unwrap(), Hardening::default());
        assert_eq!(read("SANDBOX_PIDS_LIMIT", "0").unwrap().pids, Limit::Off);
        assert_eq!(read("SANDBOX_PIDS_LIMIT", "64").unwrap().pids, Limit::Required(64));
        assert_eq!(read("SANDBOX_RUN_AS_USER", "0").unwrap().run_as_user, Some(0));
        assert_eq!(read("SANDBOX_RUN_AS_USER", "2147483647").unwrap().run_as_user, Some(2_147_483_647));
        assert!(read("SANDBOX_READONLY_ROOTFS", "true").unwrap().read_only_root);
        assert!(!read("SANDBOX_READONLY_ROOTFS", "false").unwrap().read_only_root);
        assert!(read("SANDBOX_CAP_DROP", "None").unwrap().cap_drop.is_empty());
    }

    #[test]
    fn malformed_values_fail_and_name_the_variable() {
        for (name, value) in [
            ("SANDBOX_PIDS_LIMIT", "many"),
            ("SANDBOX_PIDS_LIMIT", "-1"),
            ("SANDBOX_PIDS_LIMIT", "+1"),
            ("SANDBOX_CPU_MILLIS", "2.5"),
            ("SANDBOX_CPU_MILLIS", "9223372036854775"),
            ("SANDBOX_MEMORY_BYTES", "1GiB"),
            ("SANDBOX_EPHEMERAL_STORAGE_BYTES", "20Gi"),
            ("SANDBOX_READONLY_ROOTFS", "yes"),
            ("SANDBOX_READONLY_ROOTFS", "TRUE"),
            ("SANDBOX_RUN_AS_USER", "nobody"),
            ("SANDBOX_RUN_AS_USER", "-1"),
            ("SANDBOX_RUN_AS_USER", "2147483648"),
            ("SANDBOX_RUN_AS_USER", "4294967296"),
            ("SANDBOX_CAP_DROP", "NET_RAWW"),
        ] {
            let error = read(name, value).expect_err(value);
            assert_eq!(error.kind(), ErrorKind::InvalidSpec);
            let field = if value == "9223372036854775" { "cpu_millis" } else { name };
            assert!(error.to_string().contains(field) && error.to_string().contains(value), "{error}");
        }
    }
}
