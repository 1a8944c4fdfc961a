//! Fetching from a small HTTP server on the loopback interface. Each mirror is a path with a certain
//! behaviour.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use flate2::Compression;
use flate2::write::GzEncoder;
use stratus_base::checksum::sha256_hex;
use stratus_data::datasets::{PublishedFile, REGISTRY, UnpackedFile};
use stratus_data::fetch::fetch_files;
use stratus_data::{FetchError, FetchReport, Progress, fetch};

const NAME: &str = "digits.bin";

fn content() -> Vec<u8> {
    (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// The path and the range of a request.
type Request = (String, Option<String>);

/// A server that runs until the process ends, and the received requests.
struct Server {
    address: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let log = Arc::clone(&log);
                thread::spawn(move || answer(stream.unwrap(), &log));
            }
        });
        Self { address, requests }
    }

    fn mirror(&self, behaviour: &str) -> String {
        format!("{}/{behaviour}/", self.address)
    }

    /// Fetches the file from mirrors with these behaviours.
    fn fetch(&self, behaviours: &[&str], directory: &Path) -> Result<FetchReport, FetchError> {
        let mirrors: Vec<String> = behaviours.iter().map(|behaviour| self.mirror(behaviour)).collect();
        let mirrors: Vec<&str> = mirrors.iter().map(String::as_str).collect();
        let sha256 = sha256_hex([content().as_slice()]);
        let file =
            PublishedFile { name: NAME, bytes: 200_000, sha256: &sha256, unpacked: None, members: &[] };
        fetch_files(&[file], &mirrors, directory, &mut |_| ())
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn answer(stream: TcpStream, log: &Mutex<Vec<Request>>) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut range = None;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header).unwrap() == 0 || header.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("range")
        {
            range = Some(value.trim().to_owned());
        }
    }
    log.lock().unwrap().push((path.clone(), range.clone()));
    let first =
        range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let (whole, first): (Vec<u8>, Option<usize>) = (content(), first);
    let from = first.unwrap_or(0);
    let partial = |from: usize| format!("206 Partial Content\r\nContent-Range: bytes {from}-199999/200000");
    let honest = first.map_or("200 OK".to_owned(), partial);
    let mut wrong = whole.clone();
    wrong[100_000] ^= 1;
    let behaviour = path.split('/').nth(1).unwrap_or_default();
    let (status, announced, body): (String, Option<usize>, &[u8]) = match behaviour {
        "good" => (honest, Some(200_000 - from), &whole[from..]),
        // Closes the connection in the middle, unless the rest is requested.
        "cut" if first.is_none() => (honest, Some(200_000), &whole[..120_000]),
        "cut" => (honest, Some(200_000 - from), &whole[from..]),
        "always_cut" => (honest, Some(200_000 - from), &whole[from..(from + 1_000).min(200_000)]),
        // Does not support ranges.
        "whole" => ("200 OK".to_owned(), Some(200_000), &whole),
        // Returns another range than requested.
        "confused" => (partial(0), Some(200_000), &whole),
        "wrong" => ("200 OK".to_owned(), Some(200_000), &wrong),
        "short" => ("200 OK".to_owned(), Some(5), b"sorry"),
        "endless" => ("200 OK".to_owned(), None, &[7; 1 << 20]),
        "refuses_range" if first.is_some() => ("416 Range Not Satisfiable".to_owned(), Some(0), b""),
        "refuses_range" => (honest, Some(200_000), &whole),
        "down" => ("503 Service Unavailable".to_owned(), Some(0), b""),
        _ => ("404 Not Found".to_owned(), Some(0), b""),
    };
    let length = announced.map(|length| format!("Content-Length: {length}\r\n")).unwrap_or_default();
    let mut stream = reader.into_inner();
    // The client may hang up when it has seen enough.
    let _ = write!(stream, "HTTP/1.1 {status}\r\n{length}Connection: close\r\n\r\n")
        .and_then(|()| stream.write_all(body));
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[track_caller]
fn assert_complete(directory: &Path) {
    assert_eq!(fs::read(directory.join(NAME)).unwrap(), content());
    let names: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [NAME], "leftover files");
}

#[test]
fn fetches_a_file_once() {
    let (server, directory) = (Server::start(), temporary());
    let root = directory.path().join("not/there/yet");
    let report = server.fetch(&["good"], &root).unwrap();
    assert_complete(&root);
    assert_eq!(report.files[0].received, 200_000);
    assert_eq!(report.files[0].url, Some(format!("{}/good/{NAME}", server.address)));
    let report = server.fetch(&["good"], &root).unwrap();
    assert_eq!((report.files[0].received, &report.files[0].url), (0, &None));
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn fetches_a_damaged_file_again() {
    let (server, directory) = (Server::start(), temporary());
    fs::write(directory.path().join(NAME), vec![0; 200_000]).unwrap();
    server.fetch(&["good"], directory.path()).unwrap();
    assert_complete(directory.path());
}

#[test]
fn resumes_after_a_broken_connection() {
    let (server, directory) = (Server::start(), temporary());
    let report = server.fetch(&["cut"], directory.path()).unwrap();
    assert_complete(directory.path());
    assert_eq!(report.files[0].received, 200_000);
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    let second: usize = requests[1].1.as_deref().unwrap()[6..].trim_end_matches('-').parse().unwrap();
    assert!((1..=120_000).contains(&second), "{second}");
}

#[test]
fn resumes_a_partial_file_of_an_earlier_process() {
    let (server, directory) = (Server::start(), temporary());
    fs::write(directory.path().join("digits.bin.part"), &content()[..150_000]).unwrap();
    let report = server.fetch(&["good"], directory.path()).unwrap();
    assert_complete(directory.path());
    assert_eq!(report.files[0].received, 50_000);
    assert_eq!(server.requests()[0].1.as_deref(), Some("bytes=150000-"));
}

#[test]
fn complete_partial_file_needs_no_request() {
    let (server, directory) = (Server::start(), temporary());
    fs::write(directory.path().join("digits.bin.part"), content()).unwrap();
    server.fetch(&["good"], directory.path()).unwrap();
    assert_complete(directory.path());
    assert!(server.requests().is_empty());
}

/// Wrong bytes, too many bytes, and mirrors that cannot resume.
#[test]
fn restarts_an_unusable_partial_file() {
    for (part, mirror) in [
        (vec![0; 150_000], "good"),
        (vec![0; 200_000], "good"),
        (vec![0; 200_001], "good"),
        (content()[..150_000].to_vec(), "whole"),
        (content()[..150_000].to_vec(), "confused"),
        (content()[..150_000].to_vec(), "refuses_range"),
    ] {
        let (server, directory) = (Server::start(), temporary());
        fs::write(directory.path().join("digits.bin.part"), &part).unwrap();
        // A mirror that always returns a wrong range fails; the next one is used.
        server.fetch(&[mirror, "good"], directory.path()).unwrap();
        assert_complete(directory.path());
    }
}

#[test]
fn tries_the_next_mirror() {
    for failing in ["missing", "wrong", "short", "endless", "down", "always_cut"] {
        let (server, directory) = (Server::start(), temporary());
        let report = server.fetch(&[failing, "good"], directory.path()).unwrap();
        assert_complete(directory.path());
        assert_eq!(report.files[0].url, Some(format!("{}/good/{NAME}", server.address)), "{failing}");
        let requested =
            server.requests().iter().filter(|(path, _)| path.starts_with(&format!("/{failing}/"))).count();
        assert_eq!(requested, if matches!(failing, "down" | "always_cut") { 4 } else { 1 }, "{failing}");
    }
}

#[test]
fn lists_the_cause_of_every_failed_mirror() {
    let (server, directory) = (Server::start(), temporary());
    // A port without a server.
    let closed = format!("http://{}/", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let (missing, wrong, short) = (server.mirror("missing"), server.mirror("wrong"), server.mirror("short"));
    let sha256 = sha256_hex([content().as_slice()]);
    let file = PublishedFile { name: NAME, bytes: 200_000, sha256: &sha256, unpacked: None, members: &[] };
    let mut seen = Vec::new();
    let mirrors = [missing.as_str(), &wrong, &short, &closed];
    let error = fetch_files(&[file], &mirrors, directory.path(), &mut |progress| {
        if let Progress::Failed { url, .. } = progress {
            seen.push(url.to_owned());
        }
    })
    .unwrap_err();
    let FetchError::AllMirrorsFailed { attempts, .. } = &error else { panic!("{error}") };
    assert_eq!(attempts.len(), 4);
    assert_eq!(attempts[0].cause, "HTTP status 404 Not Found");
    assert!(
        attempts[1].cause.starts_with("sent different content: its SHA-256 is "),
        "{}",
        attempts[1].cause
    );
    assert_eq!(attempts[2].cause, "offers a file of 5 bytes, expected 200000");
    assert!(!attempts[3].cause.is_empty());
    let message = error.to_string();
    for attempt in attempts {
        assert!(message.contains(&format!("\n  {}: {}", attempt.url, attempt.cause)), "{message}");
        assert!(seen.contains(&attempt.url));
    }
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        0,
        "nothing is kept because nothing useful was received"
    );
}

#[test]
fn rejects_names_outside_the_directory() {
    let (server, directory) = (Server::start(), temporary());
    for name in ["../up", "/abs", "a/b", "a\\b", "..", ".", "", "a/../b", "a/", "nul\0"] {
        let file = PublishedFile { name, bytes: 1, sha256: "", unpacked: None, members: &[] };
        let error =
            fetch_files(&[file], &[&server.mirror("good")], directory.path(), &mut |_| ()).unwrap_err();
        assert!(matches!(error, FetchError::InvalidName { .. }), "{name:?}: {error}");
    }
    assert!(server.requests().is_empty());
}

#[cfg(unix)]
#[test]
fn does_not_follow_a_linked_partial_file() {
    let (server, directory) = (Server::start(), temporary());
    let outside = directory.path().join("outside");
    fs::write(&outside, "mine").unwrap();
    let root = directory.path().join("root");
    fs::create_dir(&root).unwrap();
    std::os::unix::fs::symlink(&outside, root.join("digits.bin.part")).unwrap();
    let error = server.fetch(&["good"], &root).unwrap_err();
    assert!(matches!(error, FetchError::Io { .. }), "{error}");
    assert_eq!(fs::read_to_string(outside).unwrap(), "mine");
}

#[test]
fn reports_a_concurrent_download() {
    let (server, directory) = (Server::start(), temporary());
    let part = fs::File::create(directory.path().join("digits.bin.part")).unwrap();
    part.lock().unwrap();
    let error = server.fetch(&["good"], directory.path()).unwrap_err();
    assert!(matches!(error, FetchError::Locked { .. }), "{error}");
}

/// Repacked and unpacked files are accepted like the published ones.
#[test]
fn recognises_unpacked_and_repacked_files() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/mnist");
    let report =
        fetch("mnist", &repository, &mut |progress| assert!(matches!(progress, Progress::Present { .. })))
            .unwrap();
    assert_eq!(report.files.len(), 4);
    assert!(report.files.iter().all(|file| file.received == 0 && file.path.exists()));

    let directory = temporary();
    fs::write(directory.path().join("digits"), b"unpacked").unwrap();
    let sha256 = sha256_hex([b"unpacked".as_slice()]);
    let unpacked = Some(UnpackedFile { name: "digits", bytes: 8, sha256: &sha256 });
    let file = PublishedFile { name: "digits.gz", bytes: 1, sha256: "", unpacked, members: &[] };
    let report = fetch_files(&[file], &[], directory.path(), &mut |_| ()).unwrap();
    assert_eq!(report.files[0].path, directory.path().join("digits"));
}

/// A gzipped tar archive of files and, under `evil`, of a path that would leave the directory.
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let packed = GzEncoder::new(Vec::new(), Compression::fast());
    let mut archive = tar::Builder::new(packed);
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        // `set_path` would reject the tested path.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        archive.append(&header, *content).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap()
}

/// Fetches an archive that is already in the directory, as after an interruption.
fn unpack(directory: &Path, content: &[u8], members: &[UnpackedFile<'_>]) -> Result<FetchReport, FetchError> {
    fs::write(directory.join("set.tar.gz"), content).unwrap();
    let sha256 = sha256_hex([content]);
    let bytes = content.len() as u64;
    let file = PublishedFile { name: "set.tar.gz", bytes, sha256: &sha256, unpacked: None, members };
    fetch_files(&[file], &[], directory, &mut |_| ())
}

#[test]
fn unpacks_only_the_listed_members() {
    let directory = temporary();
    let root = directory.path().join("root");
    fs::create_dir(&root).unwrap();
    let (one, two) = (vec![1u8; 5000], vec![2u8; 70_000]);
    let sums = [sha256_hex([one.as_slice()]), sha256_hex([two.as_slice()])];
    let members = [
        UnpackedFile { name: "set/one.bin", bytes: 5000, sha256: &sums[0] },
        UnpackedFile { name: "set/two.bin", bytes: 70_000, sha256: &sums[1] },
    ];
    let content = archive(&[
        ("../evil", b"evil"),
        ("/evil", b"evil"),
        ("set/readme", b"unasked"),
        ("set/one.bin", &one),
        ("./set/two.bin", &two),
    ]);
    let report = unpack(&root, &content, &members).unwrap();
    assert_eq!(report.files[0].path, root.join("set"));
    assert_eq!(fs::read(root.join("set/one.bin")).unwrap(), one);
    assert_eq!(fs::read(root.join("set/two.bin")).unwrap(), two);
    let names =
        |folder: &Path| fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(names(&root.join("set")).len(), 2);
    assert_eq!(names(&root), ["set"]);
    assert_eq!(names(directory.path()), ["root"]);
    // Valid unpacked members are not requested again: there is no mirror.
    let file = PublishedFile { name: "set.tar.gz", bytes: 1, sha256: "", unpacked: None, members: &members };
    assert_eq!(fetch_files(&[file], &[], &root, &mut |_| ()).unwrap().files[0].url, None);
    fs::write(root.join("set/one.bin"), vec![0; 5000]).unwrap();
    assert!(matches!(
        fetch_files(&[file], &[], &root, &mut |_| ()),
        Err(FetchError::AllMirrorsFailed { .. })
    ));
}

#[test]
fn rejects_an_archive_with_other_content() {
    let sum = sha256_hex([[1u8; 100].as_slice()]);
    let member = UnpackedFile { name: "set/one.bin", bytes: 100, sha256: &sum };
    for (content, problem) in [
        (
            archive(&[("set/one.bin", &[1; 99])]),
            "member `set/one.bin`: expected a file of 100 bytes, found 99",
        ),
        (archive(&[("set/one.bin", &[2; 100])]), "`set/one.bin` has different content: 100 bytes with"),
        (archive(&[("one.bin", &[1; 100])]), "missing members: set/one.bin"),
        (archive(&[("set/one.bin", &[1; 100])])[..60].to_vec(), "cannot read"),
        (b"no archive at all".to_vec(), "cannot read"),
    ] {
        let directory = temporary();
        let error = unpack(directory.path(), &content, &[member]).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
        assert!(!directory.path().join("set/one.bin").exists());
    }
    let outside = UnpackedFile { name: "../one.bin", bytes: 100, sha256: &sum };
    let error = unpack(temporary().path(), b"", &[outside]).unwrap_err();
    assert!(matches!(error, FetchError::InvalidName { .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn does_not_unpack_through_a_link() {
    let (directory, outside) = (temporary(), temporary());
    std::os::unix::fs::symlink(outside.path(), directory.path().join("set")).unwrap();
    let sum = sha256_hex([[1u8; 100].as_slice()]);
    let member = UnpackedFile { name: "set/one.bin", bytes: 100, sha256: &sum };
    let error = unpack(directory.path(), &archive(&[("set/one.bin", &[1; 100])]), &[member]).unwrap_err();
    assert!(matches!(error, FetchError::Io { .. }), "{error}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn suggests_the_nearest_name() {
    let error = fetch("mnits", Path::new("unused"), &mut |_| ()).unwrap_err();
    let known = REGISTRY.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ");
    assert_eq!(
        error.to_string(),
        format!("unknown data set `mnits`, did you mean `mnist`?; available: {known}")
    );
}
