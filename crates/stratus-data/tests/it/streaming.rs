//! Remote shards give the same batches as a folder, independently of the server and the cache, and clear
//! errors if the server is unreachable.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use stratus_data::shards::{self, PackOptions, PackSplit, ShardIndex};
use stratus_data::{
    BatchBuffer, DataError, Dataset, Loader, LoaderConfig, LoaderError, Normalisation, OpenOptions,
    Orientation, PixelOrder, Position, Sample, Scratch, Split, open,
};

/// Images that hardly compress, 12 × 12, so that a few make a shard.
struct Noise(usize);

impl Dataset for Noise {
    fn name(&self) -> &str {
        "noise"
    }
    fn len(&self) -> usize {
        self.0
    }
    fn classes(&self) -> usize {
        5
    }
    fn sample_shape(&self) -> Option<[usize; 3]> {
        Some([1, 12, 12])
    }
    fn label(&self, index: usize) -> Result<u32, DataError> {
        Ok(index as u32 % 5)
    }
    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        let pixel = |at: usize| ((index * 144 + at).wrapping_mul(2_654_435_761) >> 11) as u8;
        scratch.decoded = (0..144).map(pixel).collect();
        Ok(Sample {
            pixels: &scratch.decoded,
            shape: [1, 12, 12],
            dct_scaled: None,
            order: PixelOrder::Planes,
            orientation: Orientation::default(),
            label: self.label(index)?,
            mask: None,
        })
    }
    fn normalisation(&self) -> Normalisation {
        Normalisation::unit(1)
    }
    fn resident_bytes(&self) -> u64 {
        0
    }
}

/// 120 training images in about 16 shards, and 20 validation images.
fn packed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let pack_split = |split, images| PackSplit { split, set: Box::new(Noise(images)) };
    let options = PackOptions { shard_bytes: 17 << 10, ..PackOptions::default() };
    let parts = [pack_split(Split::Train, 120), pack_split(Split::Validation, 20)];
    shards::pack(&parts, folder.path(), &options, &mut |_| {}).unwrap();
    folder
}

/// A web server for a folder that can be slowed down, killed and restarted.
struct Server {
    folder: PathBuf,
    port: u16,
    /// The delay before each KiB, in milliseconds.
    slowness: Arc<AtomicU64>,
    /// The paths requested with GET.
    log: Arc<Mutex<Vec<String>>>,
    running: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let (slowness, log) = (Arc::default(), Arc::default());
        let mut server = Self { folder: folder.to_owned(), port: 0, slowness, log, running: None };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        server.port = listener.local_addr().unwrap().port();
        server.serve(move || listener);
        server
    }

    /// Serves again on the same port after a delay.
    fn resume(&mut self, after: Duration) {
        let port = self.port;
        self.serve(move || {
            thread::sleep(after);
            TcpListener::bind(("127.0.0.1", port)).unwrap()
        });
    }

    fn serve(&mut self, listener: impl FnOnce() -> TcpListener + Send + 'static) {
        let killed = Arc::new(AtomicBool::new(false));
        let (folder, slowness, log) =
            (self.folder.clone(), Arc::clone(&self.slowness), Arc::clone(&self.log));
        let stop = Arc::clone(&killed);
        let accepting = thread::spawn(move || {
            let listener = listener();
            listener.set_nonblocking(true).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                };
                stream.set_nonblocking(false).unwrap();
                let (folder, slowness) = (folder.clone(), Arc::clone(&slowness));
                let (log, stop) = (Arc::clone(&log), Arc::clone(&stop));
                // A client that disconnects is not a server error.
                thread::spawn(move || answer(stream, &folder, &slowness, &log, &stop));
            }
        });
        self.running = Some((killed, accepting));
    }

    /// Kills the server; transfers in progress break off.
    fn kill(&mut self) {
        if let Some((killed, accepting)) = self.running.take() {
            killed.store(true, Ordering::Relaxed);
            accepting.join().unwrap();
        }
    }

    fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn requested(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn answer(
    mut stream: TcpStream,
    folder: &Path,
    slowness: &AtomicU64,
    log: &Mutex<Vec<String>>,
    killed: &AtomicBool,
) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let request = lines.next()?.ok()?;
    let mut words = request.split(' ');
    let (method, name) = (words.next()?, words.next()?.trim_start_matches('/').to_owned());
    let mut range = None;
    for line in lines {
        let line = line.ok()?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some((first, last)) =
            line.strip_prefix("range: bytes=").and_then(|range| range.split_once('-'))
        {
            range = Some((first.parse::<usize>().ok()?, last.parse::<usize>().unwrap_or(usize::MAX)));
        }
    }
    let Ok(content) = fs::read(folder.join(&name)) else {
        return stream
            .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .ok();
    };
    if method == "GET" {
        log.lock().unwrap().push(name);
    }
    let (status, first, end, more) = match range {
        Some((first, last)) => {
            let end = last.saturating_add(1).min(content.len());
            let range = format!("Content-Range: bytes {first}-{}/{}\r\n", end - 1, content.len());
            ("206 Partial Content", first, end, range)
        }
        None => ("200 OK", 0, content.len(), String::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"a\"\r\n{more}Connection: close\r\n\r\n",
        end - first
    );
    stream.write_all(head.as_bytes()).ok()?;
    if method == "HEAD" {
        return Some(());
    }
    for part in content[first..end].chunks(1 << 10) {
        thread::sleep(Duration::from_millis(slowness.load(Ordering::Relaxed)));
        if killed.load(Ordering::Relaxed) {
            return None;
        }
        stream.write_all(part).ok()?;
    }
    Some(())
}

/// Windows of two shards, and a separate cache.
fn options(cache: &Path) -> OpenOptions {
    OpenOptions {
        shuffle_shards: 2,
        cache: Some(cache.to_owned()),
        give_up_after: Duration::from_secs(20),
        ..OpenOptions::default()
    }
}

fn config(workers: usize) -> LoaderConfig {
    LoaderConfig { seed: 7, workers, slots: workers + 2, epochs: Some(2), ..LoaderConfig::new(10) }
}

fn open_at(address: &str, options: &OpenOptions) -> Arc<dyn Dataset> {
    open("shards", Path::new(address), Split::Train, options).unwrap().into()
}

fn batches(set: Arc<dyn Dataset>, config: LoaderConfig, mut between: impl FnMut(usize)) -> Vec<BatchBuffer> {
    let mut loader = Loader::new(set, config).unwrap();
    let mut batches = Vec::new();
    while let Some(buffer) = loader.next().unwrap() {
        batches.push(buffer.clone());
        loader.recycle(buffer);
        between(batches.len());
    }
    batches
}

fn assert_same(a: &[BatchBuffer], b: &[BatchBuffer]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert_eq!((a.epoch, a.index, &a.indices, &a.labels), (b.epoch, b.index, &b.indices, &b.labels));
        assert_eq!(&*a.images, &*b.images);
    }
}

/// The batches from the folder itself.
fn expected(folder: &Path) -> Vec<BatchBuffer> {
    let set = open_at(folder.to_str().unwrap(), &options(folder));
    batches(set, config(1), |_| {})
}

#[test]
fn remote_shards_give_the_same_batches_and_are_fetched_once() {
    let folder = packed();
    let expected = expected(folder.path());
    let server = Server::start(folder.path());
    for workers in [1, 4] {
        let cache = tempfile::tempdir().unwrap();
        let before = server.requested().len();
        let set = open_at(&server.address(), &options(cache.path()));
        assert_same(&expected, &batches(set, config(workers), |_| {}));
        let mut requested = server.requested()[before..].to_vec();
        requested.sort();
        let shards: Vec<String> = ShardIndex::read(folder.path()).unwrap().unwrap().splits["train"]
            .iter()
            .map(|shard| shard.name.clone())
            .collect();
        let mut expected_requests: Vec<String> = shards;
        expected_requests.insert(0, "index.json".to_owned());
        assert_eq!(requested, expected_requests);
    }
}

#[test]
fn survives_a_slow_and_restarted_server() {
    let folder = packed();
    let expected = expected(folder.path());
    let mut server = Server::start(folder.path());
    server.slowness.store(3, Ordering::Relaxed);
    let cache = tempfile::tempdir().unwrap();
    let set = open_at(&server.address(), &options(cache.path()));
    let found = batches(set, config(2), |done| {
        if done == 3 || done == 7 {
            server.kill();
            server.resume(Duration::from_millis(400));
        }
    });
    assert_same(&expected, &found);
}

/// The size of the files of a cache at one moment. Files may change during a listing, so it is repeated until
/// two agree.
fn bytes_of(cache: &Path) -> u64 {
    let listing = || -> BTreeMap<OsString, u64> {
        let entries = fs::read_dir(cache).unwrap().map(Result::unwrap);
        let size =
            |entry: fs::DirEntry| (entry.file_name(), entry.metadata().map_or(0, |metadata| metadata.len()));
        entries.filter(|entry| entry.file_name().len() >= 32).map(size).collect()
    };
    let mut before = listing();
    loop {
        let now = listing();
        if now == before {
            return now.values().sum();
        }
        before = now;
    }
}

#[test]
fn bounded_cache_keeps_the_order() {
    let folder = packed();
    let expected = expected(folder.path());
    let server = Server::start(folder.path());
    let cache = tempfile::tempdir().unwrap();
    let shards = ShardIndex::read(folder.path()).unwrap().unwrap().splits["train"].clone();
    let largest = shards.iter().map(|shard| shard.bytes).max().unwrap();
    assert!(shards.len() >= 12, "{}", shards.len());
    let bound = 7 * largest;
    let options = OpenOptions { cache_bytes: bound, ..options(cache.path()) };
    let set = open_at(&server.address(), &options);
    let mut max = 0;
    let found = batches(set, config(3), |_| max = max.max(bytes_of(cache.path())));
    assert_same(&expected, &found);
    // Some KiB describe the copies.
    assert!(max <= bound + (8 << 10) && max > 3 * largest, "{max} of {bound}");
    // Two epochs of shards that the cache cannot hold: hardly any is fetched more than once per epoch.
    let fetched = server.requested().len();
    assert!(fetched <= 2 * 2 * shards.len(), "{fetched} of {}", shards.len());

    let small = OpenOptions { cache_bytes: 5 * largest, ..options };
    let message = open("shards", Path::new(&server.address()), Split::Train, &small).map(|_| ()).unwrap_err();
    let message = message.to_string();
    assert!(message.starts_with("data.cache_mib: is 0 MiB, 3/4 of it for train; 2 open shards"), "{message}");
}

#[test]
fn resume_skips_finished_shards() {
    let folder = packed();
    let expected = expected(folder.path());
    let server = Server::start(folder.path());
    let cache = tempfile::tempdir().unwrap();
    let start = Position { epoch: 1, batch: 7 };
    let set = open_at(&server.address(), &options(cache.path()));
    let found = batches(Arc::clone(&set), LoaderConfig { start, ..config(2) }, |_| {});
    assert_same(&expected[12 + 7..], &found);
    let index = ShardIndex::read(folder.path()).unwrap().unwrap();
    let mut first = 0;
    let mut needed = BTreeSet::from(["index.json".to_owned()]);
    let rest: BTreeSet<u32> = found.iter().flat_map(|batch| batch.indices.clone()).collect();
    for shard in &index.splits["train"] {
        let end = first + shard.samples() as u32;
        if rest.range(first..end).next().is_some() {
            needed.insert(shard.name.clone());
        }
        first = end;
    }
    let requested: BTreeSet<String> = server.requested().into_iter().collect();
    assert!(needed.len() < index.splits["train"].len());
    assert_eq!(requested, needed);
}

#[test]
fn reports_unreachable_servers_and_changed_shards() {
    let folder = packed();
    let mut server = Server::start(folder.path());
    let cache = tempfile::tempdir().unwrap();
    let brief = OpenOptions { give_up_after: Duration::from_millis(600), ..options(cache.path()) };
    let failure = |set: Arc<dyn Dataset>| {
        let mut loader = Loader::new(set, config(2)).unwrap();
        loop {
            match loader.next() {
                Ok(buffer) => loader.recycle(buffer.unwrap()),
                Err(LoaderError::Data { cause, .. }) => return cause.to_string(),
                Err(error) => panic!("{error}"),
            }
        }
    };
    let set = open_at(&server.address(), &brief);
    server.kill();
    let message = failure(Arc::clone(&set));
    assert!(message.contains("/train-0000") && message.contains("without progress"), "{message}");
    let message = open("shards", Path::new(&server.address()), Split::Train, &brief).map(|_| ()).unwrap_err();
    assert!(message.to_string().contains("/index.json: "), "{message}");

    // The server returns with a shard of the same size and other content.
    server.resume(Duration::ZERO);
    let shard = folder.path().join("train-000002.tar");
    let mut content = fs::read(&shard).unwrap();
    content[700] ^= 1;
    fs::write(&shard, content).unwrap();
    let message = failure(open_at(&server.address(), &brief));
    assert!(message.contains("train-000002.tar: ") && message.contains("its SHA-256 is"), "{message}");
    fs::remove_file(folder.path().join("index.json")).unwrap();
    let message = open("shards", Path::new(&server.address()), Split::Train, &brief).map(|_| ()).unwrap_err();
    assert!(message.to_string().contains("no `index.json`"), "{message}");
}
