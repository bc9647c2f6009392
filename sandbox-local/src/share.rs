//! How much of what the kernel counts for one user a single sandbox may have.

use std::fs;

use rustix::process::{Resource, getrlimit};

/// Without root all sandboxes are the caller's own user to the kernel: none may have more than this part of what that user has.
const PART: u64 = 4;
/// Counts that a user namespace can bound, below /proc/sys/user.
const COUNTS: [&str; 4] = ["max_inotify_instances", "max_inotify_watches", "max_fanotify_groups", "max_fanotify_marks"];

/// What one sandbox may have of its user's allowance; empty where it has a user of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// `NAME=NUMBER` for each count, separated by spaces.
    pub(crate) counts: String,
    /// Options of `ulimit`: pending signals, and bytes of message queues. The inner user namespace keeps them.
    pub(crate) rlimits: String,
}

impl Share {
    /// A share of what the caller has.
    pub(crate) fn of_caller() -> Self {
        let count = |name: &&str| {
            let most = fs::read_to_string(format!("/proc/sys/user/{name}")).ok()?.trim().parse::<u64>().ok()?;
            Some(format!("{name}={}", part(most)))
        };
        let limit = |(option, resource)| Some(format!("-{option} {}", part(getrlimit(resource).current?)));
        let rlimits = [('i', Resource::Sigpending), ('q', Resource::Msgqueue)];
        Self {
            counts: COUNTS.iter().filter_map(count).collect::<Vec<_>>().join(" "),
            rlimits: rlimits.into_iter().filter_map(limit).collect::<Vec<_>>().join(" "),
        }
    }
}

fn part(of: u64) -> u64 {
    (of / PART).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_everything() {
        assert_eq!([0, 1, 7, 128].map(part), [1, 1, 1, 32]);
        let share = Share::of_caller();
        for pair in share.counts.split(' ').filter(|pair| !pair.is_empty()) {
            let (name, number) = pair.split_once('=').unwrap();
            assert!(COUNTS.contains(&name) && number.parse::<u64>().unwrap() > 0, "{pair}");
        }
        let words: Vec<&str> = share.rlimits.split(' ').collect();
        assert!(words.chunks(2).all(|w| w[0].starts_with('-') && w[1].parse::<u64>().is_ok()), "{words:?}");
    }
}
