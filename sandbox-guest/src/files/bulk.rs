//! Writing many files.
//!
//! Members are held until there are as many as one delivery has. Then what is above all of them is looked at, before anything is written.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use bytes::BytesMut;
use futures::StreamExt;
use sandbox::{Effect, Error, ErrorKind, FileBatch, FileWrite, SandboxPath};
use tokio::time::timeout;

use super::answer::{Answer, Outcome};
use super::tar;
use super::transfer::{GiveUp, Transfer};
use super::write::{self, Target, WHOLE};
use crate::guest::Inner;
use crate::quote::push_word;
use crate::record::Nonce;
use crate::scripts::Part;

/// How many members one delivery has at most, and how many bytes.
const MEMBERS: usize = 1024;
const BYTES: usize = 4 << 20;
/// Fewer than this are not worth one.
const FEW: usize = 4;
/// What is sent at a time.
const PIECE: usize = 128 << 10;

/// Writes the files of a batch, in order, up to the first that fails.
pub(crate) async fn write_many(inner: &Arc<Inner>, mut files: FileBatch<'_>) -> Result<(), Error> {
    let quiet = inner.config.inactivity;
    let mut batch = Batch { inner, done: 0, waiting: Waiting::default(), most: MEMBERS, bulk: true };
    loop {
        let next = match timeout(quiet, files.next()).await {
            Ok(Some(file)) => file,
            Ok(None) => return batch.flush().await,
            Err(_) => {
                batch.flush().await?;
                let error = Error::new(ErrorKind::DeadlineExceeded);
                return Err(batch.failed(error.because(format!("the batch gave nothing within {quiet:?}")), None));
            }
        };
        batch.take(next).await?;
    }
}

/// A member that waits for its delivery.
struct Member {
    path: SandboxPath,
    target: Target,
    mode: Option<u32>,
    create_new: bool,
    content: BytesMut,
}

impl Member {
    /// Writes it alone.
    async fn write(self, inner: &Arc<Inner>) -> Result<(), Error> {
        if self.content.len() as u64 <= WHOLE {
            return write::write_whole(inner, &self.target, &self.content).await;
        }
        let mut file = FileWrite::bytes(self.path, self.content);
        (file.mode, file.create_new) = (self.mode, self.create_new);
        write::write_member(inner, file).await
    }
}

/// Members of one delivery: none of them is the place, or above the place, of another.
#[derive(Default)]
struct Waiting {
    members: VecDeque<Member>,
    bytes: usize,
    places: HashSet<SandboxPath>,
    above: HashSet<SandboxPath>,
}

impl Waiting {
    fn takes(&self, path: &SandboxPath, size: usize) -> bool {
        let room = self.members.len() < MEMBERS && self.bytes + size <= BYTES;
        let blocked = || std::iter::successors(path.parent(), SandboxPath::parent).any(|p| self.places.contains(&p));
        room && !self.places.contains(path) && !self.above.contains(path) && !blocked()
    }

    fn push(&mut self, member: Member) {
        self.bytes += member.content.len();
        self.places.insert(member.path.clone());
        for parent in std::iter::successors(member.path.parent(), SandboxPath::parent) {
            if !self.above.insert(parent) {
                break;
            }
        }
        self.members.push_back(member);
    }
}

struct Batch<'a> {
    inner: &'a Arc<Inner>,
    /// How many members have landed; also the position of the first that waits.
    done: usize,
    waiting: Waiting,
    /// How many members the next delivery may have: fewer after one that did not come far.
    most: usize,
    /// Whether the sandbox can take deliveries.
    bulk: bool,
}

impl Batch<'_> {
    async fn take(&mut self, file: FileWrite<'_>) -> Result<(), Error> {
        let path = file.path.clone();
        if let Err(e) = file.validate() {
            self.flush().await?;
            return Err(self.failed(e, Some(path)));
        }
        if file.size > BYTES as u64 {
            self.clear(Some(&path)).await?;
            self.land().await?;
            let result = write::write_member(self.inner, file).await;
            return self.one(result, path);
        }
        if !self.waiting.takes(&path, usize::try_from(file.size).unwrap_or(BYTES)) {
            self.flush().await?;
        }
        let (target, mode, create_new) = (Target::of_member(&file), file.mode, file.create_new);
        let content = match write::content(file.body, file.size, self.inner.config.inactivity).await {
            Ok(content) => content,
            Err(e) => {
                // What came before it lands.
                self.flush().await?;
                return Err(self.failed(e, Some(path)));
            }
        };
        self.waiting.push(Member { path, target, mode, create_new, content });
        Ok(())
    }

    /// Delivers what waits, unless one of it is below something that is no directory.
    async fn flush(&mut self) -> Result<(), Error> {
        self.clear(None).await?;
        self.land().await
    }

    /// Fails if what waits, or `next` after it, is below something that is no directory. One alone finds that out itself.
    async fn clear(&self, next: Option<&SandboxPath>) -> Result<(), Error> {
        let paths: Vec<_> = self.waiting.members.iter().map(|member| &member.path).chain(next).collect();
        if paths.len() < 2 {
            return Ok(());
        }
        let (mut dirs, mut known) = (Vec::new(), HashSet::new());
        for (index, path) in paths.iter().enumerate() {
            let (dir, _) = split(path);
            if known.insert(dir) {
                dirs.push((dir, index));
            }
        }
        let clear = clear_ways(self.inner, &dirs).await.map_err(|e| self.failed(e, Some(paths[0].clone())))?;
        let Some((_, index)) = dirs.get(clear) else { return Ok(()) };
        Err(self.failed(Error::new(ErrorKind::NotDirectory), Some(paths[*index].clone())).of_member(self.done + index))
    }

    async fn land(&mut self) -> Result<(), Error> {
        let Waiting { mut members, .. } = std::mem::take(&mut self.waiting);
        while !members.is_empty() {
            // One that must be new is out of the ordinary.
            let plain = members.iter().take_while(|member| !member.create_new);
            let asked = plain.take(self.most).count();
            if self.bulk && asked >= FEW {
                let some = &members.make_contiguous()[..asked];
                let landed = match deliver(self.inner, some).await {
                    Ok(landed) => landed,
                    Err(e) => return Err(self.failed(e, members.pop_front().map(|m| m.path))),
                };
                self.bulk = landed.is_some();
                let landed = landed.unwrap_or(0);
                members.drain(..landed);
                self.done += landed;
                self.most = (2 * landed).clamp(FEW, MEMBERS);
                if landed == asked {
                    continue;
                }
            }
            // Out of the ordinary, or not worth a delivery: it says itself how it goes.
            if let Some(member) = members.pop_front() {
                let path = member.path.clone();
                let result = member.write(self.inner).await;
                self.one(result, path)?;
            }
        }
        Ok(())
    }

    fn one(&mut self, result: Result<(), Error>, path: SandboxPath) -> Result<(), Error> {
        result.map_err(|e| self.failed(e, Some(path)))?;
        self.done += 1;
        Ok(())
    }

    /// The error of the first member that has not landed.
    fn failed(&self, error: Error, path: Option<SandboxPath>) -> Error {
        let error = error.of_member(self.done);
        let error = match path {
            Some(path) => error.at(path),
            None => error,
        };
        // The error says which part is there: all before that member.
        if self.done > 0 && error.effect() == Effect::None { error.with_effect(Effect::Partial) } else { error }
    }
}

/// How many of these directories, counted from the first, are there or would have to be made below one.
async fn clear_ways(inner: &Arc<Inner>, dirs: &[(&[u8], usize)]) -> Result<usize, Error> {
    let request = |nonce: Nonce| {
        let mut text = format!("__sbx_ways {}", nonce.as_str()).into_bytes();
        dirs.iter().for_each(|(dir, _)| push_word(&mut text, dir));
        text
    };
    let untouched = |e: Error| e.with_effect(Effect::None);
    let turn = inner.pool.turn().await?;
    let begun = Transfer::begin(inner, turn, Part::Write, GiveUp::Kill, &[], request).await;
    let mut transfer = begun.map_err(untouched)?;
    let record = transfer.begun().await.map_err(untouched)?;
    let answer = Answer::parse(&record).map_err(untouched)?;
    transfer.settle(answer.in_step);
    let clear = usize::try_from(answer.outcome.into_result()?).ok().filter(|n| *n <= dirs.len());
    clear.ok_or_else(|| Error::new(ErrorKind::Protocol).because("more directories than were asked about"))
}

/// Delivers members at once. Answers how many landed, counted from the first, or `None` if the sandbox cannot take deliveries.
async fn deliver(inner: &Arc<Inner>, members: &[Member]) -> Result<Option<usize>, Error> {
    let token = Nonce::new();
    let stage = format!("/.sbx-write-{}/", &token.as_str()[..16]);
    let request = |nonce: Nonce| manifest(nonce, token, members);
    let untouched = |e: Error| e.with_effect(Effect::None);
    let unknown = |e: Error| e.with_effect(Effect::Unknown);
    let turn = inner.pool.turn().await?;
    let begun = Transfer::begin(inner, turn, Part::Bulk, GiveUp::CleanUp, &[], request).await;
    let mut transfer = begun.map_err(untouched)?;
    let mut record = transfer.begun().await.map_err(untouched)?;
    if record.kind == b'G' {
        let count = std::str::from_utf8(&record.payload).ok().and_then(|n| n.parse().ok());
        let some = count.and_then(|n: usize| members.get(..n));
        let some = some.ok_or_else(|| Error::new(ErrorKind::Protocol).because("a count of members that is none"))?;
        record = match send_archive(&mut transfer, stage.as_bytes(), some).await {
            Ok(Some(record)) => record,
            Ok(None) => transfer.next_record().await.map_err(unknown)?,
            Err(e) => return Err(unknown(e)),
        };
    }
    let answer = Answer::parse(&record)?;
    transfer.settle(answer.in_step);
    match answer.outcome {
        Outcome::Failed(ErrorKind::Unsupported, _) => Ok(None),
        outcome => {
            let landed = outcome.into_result()?;
            let landed = usize::try_from(landed).ok().filter(|n| *n <= members.len());
            landed.map(Some).ok_or_else(|| {
                Error::new(ErrorKind::Protocol).with_effect(Effect::Unknown).because("more landed than was sent")
            })
        }
    }
}

fn manifest(nonce: Nonce, token: Nonce, members: &[Member]) -> Vec<u8> {
    let mut dirs: Vec<&[u8]> = Vec::new();
    let mut known = std::collections::HashMap::new();
    let mut list = Vec::new();
    for member in members {
        let (dir, name) = split(&member.path);
        let index = *known.entry(dir).or_insert_with(|| {
            dirs.push(dir);
            dirs.len() - 1
        });
        list.extend_from_slice(format!(" {index} ").as_bytes());
        match member.mode {
            Some(mode) => list.extend_from_slice(format!("{mode:o}").as_bytes()),
            None => list.extend_from_slice(b"''"),
        }
        push_word(&mut list, name);
    }
    let (nonce, token) = (nonce.as_str(), &token.as_str()[..16]);
    let mut text = format!("__sbx_bulk {nonce} {token} {} {}", dirs.len(), members.len()).into_bytes();
    for dir in dirs {
        push_word(&mut text, dir);
    }
    text.append(&mut list);
    text
}

/// The directory, empty for `/`, and the name in it.
fn split(path: &SandboxPath) -> (&[u8], &[u8]) {
    let name = path.file_name();
    (&path.as_bytes()[..path.as_bytes().len() - name.len() - 1], name)
}

async fn send_archive(
    transfer: &mut Transfer,
    stage: &[u8],
    members: &[Member],
) -> Result<Option<crate::record::Record>, Error> {
    let name = |member: &Member| {
        let (dir, name) = split(&member.path);
        [dir, stage, name].concat()[1..].to_vec()
    };
    let size =
        |member: &Member| tar::head_len(&name(member)) + member.content.len() + tar::padding(member.content.len());
    let total = members.iter().map(size).sum::<usize>() + tar::END.len();
    let mut piece = format!("{total}\n").into_bytes();
    for member in members {
        // Its mode comes later.
        tar::push_head(&mut piece, &name(member), member.content.len(), 0o600);
        piece.extend_from_slice(&member.content);
        piece.resize(piece.len() + tar::padding(member.content.len()), 0);
        if piece.len() >= PIECE {
            if let Some(record) = transfer.send_or_answer(&piece).await? {
                return Ok(Some(record));
            }
            piece.clear();
        }
    }
    piece.extend_from_slice(&tar::END);
    transfer.send_or_answer(&piece).await
}
