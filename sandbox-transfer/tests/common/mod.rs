//! Fakes: a provider that serves any bytes as an export, a sandbox that is a folder of this machine, and archives of every kind.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use sandbox::{
    ByteStream, Capabilities, Command, Error, ErrorKind, ExecRequest, ExecResult, ExportStream, FileBatch, FileWrite,
    Output, OwnedStream, Process, Provider, ReadStream, Recreated, Sandbox, SandboxPath, SessionId, SpawnRequest, Spec,
};
use tar::{EntryType, Header};
use tokio::io::AsyncReadExt;

pub(crate) fn session() -> SessionId {
    SessionId::new("s").unwrap()
}

/// Serves what `serve` makes as the export of anything.
pub(crate) struct FakeProvider<F>(pub(crate) F);

impl<F> std::fmt::Debug for FakeProvider<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FakeProvider")
    }
}

#[async_trait]
impl<F: Fn() -> ExportStream + Send + Sync + 'static> Provider for FakeProvider<F> {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    async fn provision(&self, _: &Spec) -> Result<Arc<dyn Sandbox>, Error> {
        Err(Error::new(ErrorKind::Unsupported))
    }
    async fn attach(&self, _: &SessionId) -> Result<Arc<dyn Sandbox>, Error> {
        Err(Error::new(ErrorKind::NotFound))
    }
    async fn owned(&self) -> Result<OwnedStream, Error> {
        Err(Error::new(ErrorKind::Unsupported))
    }
    async fn reap(&self, _: &SessionId) -> Result<(), Error> {
        Ok(())
    }
    async fn export(&self, _: &SessionId, _: &SandboxPath) -> Result<ExportStream, Error> {
        Ok((self.0)())
    }
}

/// `bytes` in pieces of `size`, and then `end`.
pub(crate) fn stream(bytes: &[u8], size: usize, end: Option<ErrorKind>) -> ExportStream {
    let mut items: Vec<Result<Bytes, Error>> = bytes.chunks(size).map(|c| Ok(Bytes::copy_from_slice(c))).collect();
    items.extend(end.map(|kind| Err(Error::new(kind))));
    ByteStream::new(futures::stream::iter(items))
}

pub(crate) fn serving(archive: Vec<u8>) -> impl Provider {
    FakeProvider(move || stream(&archive, 1000, None))
}

/// An archive under construction, with nothing checked.
#[derive(Default, Clone)]
pub(crate) struct Tar(pub(crate) Vec<u8>);

impl Tar {
    pub(crate) fn header(kind: EntryType, name: &[u8], size: u64, mode: u32) -> Header {
        let mut header = Header::new_gnu();
        assert!(name.len() <= 100);
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(mode);
        header.set_cksum();
        header
    }

    pub(crate) fn raw(mut self, header: &Header, data: &[u8]) -> Self {
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn entry(self, kind: EntryType, name: &[u8], mode: u32, data: &[u8]) -> Self {
        if name.len() > 100 {
            let mut long = name.to_vec();
            long.push(0);
            let header = Self::header(EntryType::GNULongName, b"././@LongLink", long.len() as u64, 0o644);
            return self.raw(&header, &long).entry(kind, &name[..100], mode, data);
        }
        self.raw(&Self::header(kind, name, data.len() as u64, mode), data)
    }

    pub(crate) fn dir(self, name: impl AsRef<[u8]>) -> Self {
        self.entry(EntryType::Directory, name.as_ref(), 0o755, b"")
    }

    pub(crate) fn file(self, name: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Self {
        self.entry(EntryType::Regular, name.as_ref(), 0o644, data.as_ref())
    }

    pub(crate) fn link(self, kind: EntryType, name: &[u8], target: &[u8]) -> Self {
        let mut header = Self::header(kind, name, 0, 0o777);
        let slot = &mut header.as_gnu_mut().unwrap().linkname;
        if target.len() > slot.len() {
            let long = [target, b"\0"].concat();
            let more = Self::header(EntryType::GNULongLink, b"././@LongLink", long.len() as u64, 0o644);
            return self.raw(&more, &long).link(kind, name, &target[..100]);
        }
        slot[..target.len()].copy_from_slice(target);
        header.set_cksum();
        self.raw(&header, b"")
    }

    pub(crate) fn symlink(self, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        self.link(EntryType::Symlink, name.as_ref(), target.as_ref())
    }

    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut data = Vec::new();
        for (key, value) in records {
            let bare = key.len() + value.len() + 3;
            let mut length = bare + 1;
            while bare + length.to_string().len() != length {
                length += 1;
            }
            data.extend_from_slice(format!("{length} {key}=").as_bytes());
            data.extend_from_slice(value);
            data.push(b'\n');
        }
        let header = Self::header(EntryType::XHeader, b"pax", data.len() as u64, 0o644);
        self.raw(&header, &data)
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

/// What a tree holds, links not followed: path below the top to (kind, permission bits, content or target).
pub(crate) fn tree(top: &Path) -> BTreeMap<Vec<u8>, (char, u32, Vec<u8>)> {
    fn visit(top: &Path, at: &Path, all: &mut BTreeMap<Vec<u8>, (char, u32, Vec<u8>)>) {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let mode = meta.mode() & 0o7777;
            let node = if meta.is_symlink() {
                ('l', 0, std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
            } else if meta.is_dir() {
                visit(top, &path, all);
                ('d', mode, Vec::new())
            } else {
                ('f', mode, std::fs::read(&path).unwrap())
            };
            all.insert(path.strip_prefix(top).unwrap().as_os_str().as_bytes().to_vec(), node);
        }
    }
    let mut all = BTreeMap::new();
    visit(top, top, &mut all);
    all
}

/// A sandbox whose files are this machine's: the paths that it is given lie in a temporary folder of the test.
#[derive(Debug, Default)]
pub(crate) struct HostSandbox {
    id: Option<SessionId>,
    /// How many files each call of `write_many` took.
    pub(crate) batches: Mutex<Vec<usize>>,
    /// The bytes of each command's arguments.
    pub(crate) commands: Mutex<Vec<usize>>,
    /// The member of all batches that fails.
    pub(crate) fail_at: Option<usize>,
    /// Whether commands that make links fail.
    pub(crate) deny_links: bool,
}

impl HostSandbox {
    pub(crate) fn new() -> Self {
        Self { id: Some(session()), ..Self::default() }
    }

    fn put(path: &Path, mode: u32, bytes: &[u8]) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

pub(crate) fn host(path: &SandboxPath) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()))
}

#[async_trait]
impl Sandbox for HostSandbox {
    fn id(&self) -> &SessionId {
        self.id.as_ref().unwrap()
    }
    fn recreated(&self) -> Option<&Recreated> {
        None
    }
    async fn exec(&self, request: ExecRequest) -> Result<ExecResult, Error> {
        request.validate()?;
        let Command::Args(args) = request.command else { panic!("a text for the shell") };
        self.commands.lock().unwrap().push(args.iter().map(|a| a.len() + 1).sum());
        if self.deny_links && args[2].windows(2).any(|w| w == b"ln") {
            let said = Output::new("ln: first\nln: Read-only \x1b[1m file system\n", 40);
            return Ok(ExecResult::new(1, false, Output::new("1", 1), said, Duration::ZERO));
        }
        let mut command = std::process::Command::new(std::ffi::OsStr::from_bytes(&args[0]));
        let done = command.args(args[1..].iter().map(|a| std::ffi::OsStr::from_bytes(a))).output().unwrap();
        let output = |bytes: Vec<u8>| Output::new(bytes.clone(), bytes.len() as u64);
        let code = done.status.code().unwrap();
        Ok(ExecResult::new(code, false, output(done.stdout), output(done.stderr), Duration::ZERO))
    }
    async fn spawn(&self, _: SpawnRequest) -> Result<Process, Error> {
        Err(Error::new(ErrorKind::Unsupported))
    }
    async fn read(&self, _: &SandboxPath, _: u64) -> Result<ReadStream, Error> {
        Err(Error::new(ErrorKind::Unsupported))
    }
    async fn write(&self, _: FileWrite<'_>) -> Result<(), Error> {
        Err(Error::new(ErrorKind::Unsupported))
    }
    async fn write_many(&self, mut files: FileBatch<'_>) -> Result<(), Error> {
        let before: usize = self.batches.lock().unwrap().iter().sum();
        self.batches.lock().unwrap().push(0);
        let mut index = 0;
        while let Some(mut file) = files.next().await {
            file.validate()?;
            let mut bytes = Vec::new();
            file.body.read_to_end(&mut bytes).await.map_err(|e| Error::new(ErrorKind::Other).caused_by(e))?;
            if bytes.len() as u64 != file.size {
                return Err(Error::new(ErrorKind::ShortTransfer).of_member(index));
            }
            if self.fail_at == Some(before + index) {
                return Err(Error::new(ErrorKind::NotWritable).of_member(index));
            }
            Self::put(host(&file.path), file.mode.unwrap(), &bytes);
            index += 1;
            *self.batches.lock().unwrap().last_mut().unwrap() += 1;
        }
        Ok(())
    }
    async fn destroy(&self) -> Result<(), Error> {
        Ok(())
    }
}
