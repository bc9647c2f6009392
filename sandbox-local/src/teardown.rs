//! Ends what runs in a sandbox.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use sandbox::{Effect, Error, ErrorKind};

use crate::error::io_error;
use crate::ident::{self, Identity, Process};
use crate::start::{ALIVE, is_held, reported};

/// How long an orderly end takes at most; after that the stragglers are looked for.
const ORDERLY: Duration = Duration::from_millis(30);
/// How long a process that was just started may take to say who it is; after that it is looked for.
const SAYS_WHO: Duration = Duration::from_millis(500);

/// Ends what runs in a box; waits until nothing is left of it. `identity` is what is known of it, if anything is: a creator that
/// was killed half-way leaves a box that only speaks for itself. What it says is of this run of the machine if `is_recent`, or if something
/// still holds its lock.
pub(crate) fn end_box(
    path: &Path,
    identity: Option<&Identity>,
    is_recent: bool,
    deadline: Instant,
) -> Result<(), Error> {
    end(path, identity, is_recent, deadline).map_err(|e| {
        let error = io_error(format!("cannot end what runs in {}", path.display()), e);
        if error.kind() == ErrorKind::DeadlineExceeded { still_there(path) } else { error.with_effect(Effect::Unknown) }
    })
}

fn still_there(path: &Path) -> Error {
    Error::new(ErrorKind::DeadlineExceeded)
        .with_effect(Effect::Unknown)
        .because(format!("something of {} still ran", path.display()))
}

fn end(path: &Path, identity: Option<&Identity>, is_recent: bool, deadline: Instant) -> io::Result<()> {
    let begun = Instant::now();
    let mut pause = Duration::from_micros(200);
    let mut inside = identity.and_then(|i| i.namespaces.get("pid").copied());
    let mut ended = None;
    loop {
        let said = if is_recent || is_held(path)? { reported(path) } else { None };
        let known = identity.map(|i| (i.init, Some(i.parent))).or(said.map(|(init, _)| (init, None)));
        if let Some((init, _)) = known
            && inside.is_none()
            && init.lives()?
        {
            inside = ident::namespace(init.pid, "pid")?;
        }
        if let Some((init, _)) = known
            && ended.is_none()
            && !init.lives()?
        {
            ended = Some(ident::now());
        }
        let gone = match known {
            Some((init, parent)) => kill(init, parent, pause)?,
            None => true,
        };
        if gone && !is_held(path)? && !wake_stragglers(inside, ended)? {
            return Ok(());
        }
        if begun.elapsed() > ORDERLY {
            wake_stragglers(inside, ended)?;
        }
        if begun.elapsed() > SAYS_WHO {
            kill_holders(path)?;
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// Kills the first process, and with it the whole pid namespace; waits a moment for it, and says whether it is gone.
fn kill(init: Process, parent: Option<Process>, patience: Duration) -> io::Result<bool> {
    let Some(fd) = init.open()? else {
        // Its parent follows it by itself, unless something holds that up.
        return match parent {
            Some(parent) => Ok(!parent.lives()?),
            None => Ok(true),
        };
    };
    match rustix::process::pidfd_send_signal(&fd, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(e) => return Err(e.into()),
    }
    let patience = Timespec::try_from(patience.max(Duration::from_millis(5))).ok();
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], patience.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(!init.lives()?)
}

/// A process whose children are in a pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Member {
    process: Process,
    /// It is in there itself.
    lives_inside: bool,
}

/// A pid namespace ends only when every process in it was waited for, and some are waited for by a process outside that has entered
/// it: one that was stopped, as a tenant can do to it by stopping its child, would hold the end up for ever. Says whether there was one.
/// `ended` is when the first process of the namespace was known to be gone.
fn wake_stragglers(inside: Option<u64>, ended: Option<u64>) -> io::Result<bool> {
    let Some(inside) = inside else { return Ok(false) };
    let mut members = Vec::new();
    for pid in ident::processes()? {
        // Of other people's processes nothing can be seen, and they are none of ours.
        let Ok(Some(stat)) = ident::stat(pid) else { continue };
        if matches!(ident::namespace(pid, "pid_for_children"), Ok(Some(inode)) if inode == inside) {
            let lives_inside = matches!(ident::namespace(pid, "pid"), Ok(Some(inode)) if inode == inside);
            members.push(Member { process: Process { pid, start: stat.start }, lives_inside });
        }
    }
    let stragglers = stragglers(members, ended);
    for straggler in &stragglers {
        straggler.signal(Signal::CONT)?;
    }
    Ok(!stragglers.is_empty())
}

/// Which of those that seem to belong to a pid namespace do. The kernel gives the number of one that is gone to the next that is made,
/// at once: what looks like ours can be a sandbox that somebody is making meanwhile. Pure.
fn stragglers(members: Vec<Member>, ended: Option<u64>) -> Vec<Process> {
    if ended.is_some() && members.iter().any(|member| member.lives_inside) {
        // Nobody lives in one without its first process, and whoever still held ours would keep its number from being given away.
        return Vec::new();
    }
    let of_ours = members.into_iter().map(|member| member.process);
    of_ours.filter(|process| ended.is_none_or(|ended| process.start <= ended)).collect()
}

/// Kills whoever holds the lock of a box: what a creator had just started when it was killed itself.
fn kill_holders(path: &Path) -> io::Result<()> {
    let alive = path.join(ALIVE);
    for pid in ident::processes()? {
        let Ok(Some(stat)) = ident::stat(pid) else { continue };
        if ident::reads_from(pid, &alive) {
            Process { pid, start: stat.start }.signal(Signal::KILL)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_after_the_end_is_somebody_else() {
        let outside = |pid, start| Member { process: Process { pid, start }, lives_inside: false };
        let inside = |pid, start| Member { lives_inside: true, ..outside(pid, start) };
        let pids = |members: &[Member], ended| -> Vec<i32> {
            stragglers(members.to_vec(), ended).iter().map(|p| p.pid).collect()
        };
        // It still runs: all count.
        assert_eq!(pids(&[outside(1, 90), outside(2, 110), inside(3, 95)], None), [1, 2, 3]);
        // Its first process went at 100: who entered it before is stopped and holds it up.
        assert_eq!(pids(&[outside(1, 90), outside(2, 100)], Some(100)), [1, 2]);
        // Another one is being made under its number.
        assert_eq!(pids(&[outside(1, 101)], Some(100)), [0; 0]);
        assert_eq!(pids(&[outside(1, 90), outside(2, 101)], Some(100)), [1]);
        // And lives: whoever made it can have started before ours went.
        assert_eq!(pids(&[outside(1, 90), inside(2, 101)], Some(100)), [0; 0]);
        assert_eq!(pids(&[inside(1, 50)], Some(100)), [0; 0]);
    }
}
