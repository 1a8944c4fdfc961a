use super::{Machine, Needs, Prepared, Target};
use crate::local::Local;
use crate::{Job, Parcel, Program, Resources};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

fn plain(program: &Program) -> Needs<'_> {
    Needs { program, parcels: &[], repetitions: 1, resources: Resources::default(), same_kind: false }
}

fn machine(folder: &Path) -> Machine<Local> {
    Machine { shell: Local { name: "lab".to_owned() }, folder: folder.display().to_string() }
}

#[test]
fn what_is_there_is_not_sent_and_a_cut_file_is_gone_on_with() {
    let place = tempfile::tempdir().unwrap();
    let (there, program) = (place.path().join("the re"), place.path().join("program"));
    fs::write(&program, "no ELF").unwrap();
    let data = place.path().join("data");
    fs::create_dir_all(data.join("a b")).unwrap();
    fs::write(data.join("a b/it's small"), "small").unwrap();
    fs::write(data.join("empty"), "").unwrap();
    let large: Vec<u8> = (0..5_000_000_u32).map(|number| (number % 251) as u8).collect();
    fs::write(data.join("large"), &large).unwrap();
    let program = Program::new(&program, &[]).unwrap();
    let parcels = [Parcel::of_path("data", &data).unwrap()];
    let needs = Needs { program: &program, parcels: &parcels, ..plain(&program) };
    // So much came before the connection was cut.
    let hash = &parcels[0].items.iter().find(|item| item.path == "large").unwrap().hash;
    fs::create_dir_all(there.join("content")).unwrap();
    let part = there.join(format!("content/{hash}.part"));
    fs::write(&part, &large[..3_000_000]).unwrap();
    let target = machine(&there);
    let Prepared { root, folders, files, bytes, .. } = target.prepare(&needs).unwrap();
    assert_eq!((files, bytes), (4, 6 + 5 + 2_000_000));
    let arrived = Path::new(&root).join(&folders[1]);
    assert_eq!(fs::read(arrived.join("large")).unwrap(), large);
    assert_eq!(fs::read_to_string(arrived.join("a b/it's small")).unwrap(), "small");
    assert!(arrived.join("empty").exists() && Path::new(&root).join(&folders[0]).join("stratus").exists());
    let again = target.prepare(&needs).unwrap();
    assert_eq!((again.files, again.bytes), (0, 0));

    // What came wrong is sent anew, by the next launch.
    fs::remove_file(there.join(format!("content/{hash}"))).unwrap();
    fs::write(&part, [7; 1000]).unwrap();
    let error = target.prepare(&needs).unwrap_err().to_string();
    assert!(error.contains("arrived with other bytes"), "{error}");
    assert_eq!(target.prepare(&needs).unwrap().bytes, 5_000_000);
}

#[test]
fn another_machine_is_not_met_and_no_program_of_a_newer_system_is_sent() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("program");
    fs::write(&path, "GLIBC_2.999\0").unwrap();
    let mut program = Program::new(&path, &[]).unwrap();
    let target = machine(&place.path().join("there"));
    let error = |program: &Program| target.prepare(&plain(program)).unwrap_err().to_string();
    assert!(error(&program).contains("the program needs 2.999"));
    program.architecture = "pdp11";
    assert!(error(&program).contains("the program is for Linux on pdp11"));
    assert_eq!(fs::read_dir(place.path().join("there/content")).unwrap().count(), 0);
}

#[test]
fn a_job_of_another_machine_is_left_alone_until_its_heart_stands_still() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("jobs/a");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("owner"), "token elsewhere 12 1\n").unwrap();
    let target = machine(place.path());
    let root = place.path().display().to_string();
    let job = Job {
        id: "a".to_owned(),
        program: "/bin/true".to_owned(),
        environment: BTreeMap::new(),
        experiments: vec![String::new()],
        resources: Resources::default(),
        workers: None,
        stop: None,
        notify: None,
        hosts: Vec::new(),
        only: None,
    };
    let refused = std::thread::scope(|scope| {
        let started = scope.spawn(|| target.submit(&root, &job));
        let mut beat = 0;
        while !started.is_finished() {
            beat += 1;
            // A clock that is far behind.
            fs::write(folder.join("heartbeat"), format!("{beat}\n")).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
        started.join().unwrap().unwrap_err().to_string()
    });
    assert!(refused.contains("by elsewhere, process 12"), "{refused}");
    assert!(!folder.join("launch.sh").exists());
    target.submit(&root, &job).unwrap();
    assert!(!fs::read_to_string(folder.join("owner")).unwrap().contains("elsewhere"));
}
