use super::{HostFacts, PrepareOptions, PreparedTarget, ShellTarget, Target};
use crate::local::LocalShell;
use crate::{Executable, FileSet, Job, Resources};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

fn plain(program: &Executable) -> PrepareOptions<'_> {
    PrepareOptions {
        executable: program,
        file_sets: &[],
        repetitions: 1,
        resources: Resources::default(),
        same_cpu_only: false,
    }
}

fn machine(folder: &Path) -> ShellTarget {
    ShellTarget {
        shell: Box::new(LocalShell { name: "lab".to_owned() }),
        folder: folder.display().to_string(),
    }
}

fn job(id: &str) -> Job {
    Job {
        id: id.to_owned(),
        program: "/bin/true".to_owned(),
        environment: BTreeMap::new(),
        experiments: vec![String::new()],
        resources: Resources::default(),
        workers: None,
        stop_at: None,
        notify: None,
        host_by_repetition: Vec::new(),
        goals: Vec::new(),
        selected: None,
    }
}

#[test]
fn existing_files_are_not_sent_and_partial_uploads_are_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let (remote, program) = (dir.path().join("the re"), dir.path().join("program"));
    fs::write(&program, "no ELF").unwrap();
    let data = dir.path().join("data");
    fs::create_dir_all(data.join("a b")).unwrap();
    fs::write(data.join("a b/it's small"), "small").unwrap();
    fs::write(data.join("empty"), "").unwrap();
    let large: Vec<u8> = (0..5_000_000_u32).map(|number| (number % 251) as u8).collect();
    fs::write(data.join("large"), &large).unwrap();
    let program = Executable::new(&program, &[]).unwrap();
    let file_sets = [FileSet::from_path("data", &data).unwrap()];
    let options = PrepareOptions { executable: &program, file_sets: &file_sets, ..plain(&program) };
    // A partial file of an interrupted upload.
    let hash = &file_sets[0].files.iter().find(|item| item.path == "large").unwrap().hash;
    fs::create_dir_all(remote.join("content")).unwrap();
    let part = remote.join(format!("content/{hash}.part"));
    fs::write(&part, &large[..3_000_000]).unwrap();
    let target = machine(&remote);
    let PreparedTarget { root, folders, files, bytes, .. } = target.prepare(&options).unwrap();
    assert_eq!((files, bytes), (4, 6 + 5 + 2_000_000));
    let arrived = Path::new(&root).join(&folders[1]);
    assert_eq!(fs::read(arrived.join("large")).unwrap(), large);
    assert_eq!(fs::read_to_string(arrived.join("a b/it's small")).unwrap(), "small");
    assert!(arrived.join("empty").exists() && Path::new(&root).join(&folders[0]).join("stratus").exists());
    let again = target.prepare(&options).unwrap();
    assert_eq!((again.files, again.bytes), (0, 0));

    // A corrupted file is sent again by the next launch.
    fs::remove_file(remote.join(format!("content/{hash}"))).unwrap();
    fs::write(&part, [7; 1000]).unwrap();
    let error = target.prepare(&options).unwrap_err().to_string();
    assert!(error.contains("checksum mismatch: "), "{error}");
    assert_eq!(target.prepare(&options).unwrap().bytes, 5_000_000);
}

#[test]
fn programs_are_sent_compressed_and_partial_uploads_are_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let (remote, program) = (dir.path().join("remote"), dir.path().join("program"));
    let bytes: Vec<u8> = (0..5_000_000_u32).map(|number| (number % 253) as u8).collect();
    let bytes = [b"\x7fELF", &bytes[..]].concat();
    fs::write(&program, &bytes).unwrap();
    // A dependency beside a library is sent with it.
    let library = dir.path().join("libdnnl.so.3");
    fs::write(&library, "a library").unwrap();
    fs::write(dir.path().join("libgomp.so.1"), "its dependency").unwrap();
    let program = Executable::new(&program, &[("STRATUS_ONEDNN", vec![library])]).unwrap();
    let part = remote.join(format!("content/{}.part", program.file_set.files[0].hash));
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    fs::write(&part, &bytes[..3_000_000]).unwrap();

    let PreparedTarget { root, folders, .. } = machine(&remote).prepare(&plain(&program)).unwrap();
    let arrived = Path::new(&root).join(&folders[0]);
    assert!(fs::read(arrived.join("stratus")).unwrap() == bytes);
    assert_eq!(fs::read_to_string(arrived.join("stratus_onednn/libgomp.so.1")).unwrap(), "its dependency");
}

#[test]
fn rejects_hosts_with_an_older_glibc_or_another_architecture() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("program");
    fs::write(&path, "GLIBC_2.999\0").unwrap();
    let mut program = Executable::new(&path, &[]).unwrap();
    let target = machine(&dir.path().join("remote"));
    let error = |program: &Executable| target.prepare(&plain(program)).unwrap_err().to_string();
    assert!(error(&program).contains("the program needs 2.999"));
    program.architecture = "pdp11";
    assert!(error(&program).contains("the program is for Linux on pdp11"));
    assert_eq!(fs::read_dir(dir.path().join("remote/content")).unwrap().count(), 0);
}

#[test]
fn job_of_another_host_is_kept_while_its_heartbeat_changes() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("jobs/a");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("owner"), "token elsewhere 12 1\n").unwrap();
    let target = machine(dir.path());
    let root = dir.path().display().to_string();
    let job = job("a");
    let refused = std::thread::scope(|scope| {
        let started = scope.spawn(|| target.submit(&root, &job));
        let mut beat = 0;
        while !started.is_finished() {
            beat += 1;
            // The clock is far behind.
            fs::write(folder.join("heartbeat"), format!("{beat}\n")).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
        started.join().unwrap().unwrap_err().to_string()
    });
    assert!(refused.contains("on elsewhere, process 12"), "{refused}");
    assert!(!folder.join("launch.sh").exists());
    target.submit(&root, &job).unwrap();
    assert!(!fs::read_to_string(folder.join("owner")).unwrap().contains("elsewhere"));
}

/// A full or read-only disk is no other process.
#[test]
fn lock_that_cannot_be_opened_is_not_taken_for_a_running_job() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("jobs/a");
    fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink("/nowhere/owner.lock", folder.join("owner.lock")).unwrap();
    let error = machine(dir.path()).submit(&dir.path().display().to_string(), &job("a")).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("cannot start the job") && error.contains("No such file"), "{error}");
    assert!(!folder.join("launch.sh").exists());
}

/// A local disk that fails during an upload is not a failure of the target.
#[cfg(target_os = "linux")]
#[test]
fn unreadable_local_file_is_named_when_it_is_uploaded() {
    let dir = tempfile::tempdir().unwrap();
    let target = machine(dir.path());
    let mut program = FileSet::from_path("program", Path::new("/bin/true")).unwrap();
    // Reading the first byte of a process's memory fails like a bad sector.
    program.files[0].source = "/proc/self/mem".into();
    let item = &program.files[0];
    let facts = HostFacts { root: "there".to_owned(), ..HostFacts::default() };
    for upload in [target.upload_batch("there", &[item]), target.upload_large(&facts, item, 0)] {
        let error = upload.unwrap_err().to_string();
        assert!(error.contains("cannot read /proc/self/mem: Input/output error"), "{error}");
    }
}
