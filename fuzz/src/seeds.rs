//! The first inputs of each target, from the fixtures of the crates' tests and from generators.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use stratus_graph::{layer_file, zoo};
use stratus_run::csv::Task;

use crate::targets;

/// Writes `<folder>/<target>/seed-<number>` and `<folder>/<target>.dict`.
pub fn write(folder: &Path) -> io::Result<()> {
    for target in targets::ALL {
        let corpus = folder.join(target.name);
        fs::create_dir_all(&corpus)?;
        let mut seeds = (target.seeds)();
        seeds.retain(|seed| seed.len() <= target.max_bytes);
        for (number, seed) in seeds.iter().enumerate() {
            fs::write(corpus.join(format!("seed-{number:03}")), seed)?;
        }
        let words = target.dictionary.iter().map(|word| format!("\"{}\"\n", word.replace('"', "\\\"")));
        fs::write(folder.join(format!("{}.dict", target.name)), words.collect::<String>())?;
        fs::write(folder.join(format!("{}.max", target.name)), target.max_bytes.to_string())?;
        println!("{}: {} seeds", target.name, seeds.len());
    }
    Ok(())
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The files of a folder and those below it, with an extension and at most a length.
fn files(folder: &Path, extension: &str, max_bytes: u64, found: &mut Vec<Vec<u8>>) {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            files(&path, extension, max_bytes, found);
        } else if path.extension().is_some_and(|found| found == extension)
            && path.metadata().is_ok_and(|file| file.len() <= max_bytes)
        {
            found.extend(fs::read(&path));
        }
    }
}

/// The fixtures of a crate's tests.
pub fn fixtures(crate_name: &str, extension: &str, max_bytes: u64) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    files(&repository().join("crates").join(crate_name).join("tests"), extension, max_bytes, &mut found);
    found
}

fn sources(folder: &str, extension: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    files(&repository().join(folder), extension, 64 << 10, &mut found);
    found
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Layer files of small networks, and those of the engine's tests.
pub fn layer_files() -> Vec<Vec<u8>> {
    let mut all = fixtures("stratus-engine", "toml", 64 << 10);
    for name in ["digits", "alexnet", "squeezenet1_1", "resnet18", "mobilenet_v3_small", "erfnet"] {
        let graph = zoo::find(name).and_then(|network| (network.build)(&(network.defaults)()));
        let written = graph.ok().and_then(|graph| layer_file::write(&graph.for_inference()).ok());
        all.extend(written.map(String::into_bytes));
    }
    all
}

/// The built-in experiments, and nested values.
pub fn experiments() -> Vec<Vec<u8>> {
    let mut all = sources("crates/stratus-experiment/src/builtin", "toml");
    let deep = 1_300;
    all.extend(texts(&[&format!("a = {}", "[".repeat(deep)), &format!("[{}a]", "a.".repeat(deep))]));
    all.extend(texts(&[&format!("a = {}", "{a=".repeat(deep)), &"[[a]]\n".repeat(deep)]));
    all
}

/// Nested values, which a parser must not descend into without a limit.
pub fn nested_json() -> Vec<Vec<u8>> {
    let deep = 30_000;
    texts(&[&"[".repeat(deep), &"{\"images\":".repeat(deep / 10), &"{\"a\":[".repeat(deep / 6)])
}

/// Experiments in XML.
pub fn xml() -> Vec<Vec<u8>> {
    let mut all = sources("crates/stratus-experiment", "xml");
    all.extend(texts(&[
        r#"<?xml version="1.0"?><experiment name="a"><model name="digits"/><train epochs="3"/></experiment>"#,
        "<experiment><model><name>vgg16</name></model><train><batch_size>8</batch_size></train></experiment>",
    ]));
    all
}

/// Sweep files.
pub fn sweeps() -> Vec<Vec<u8>> {
    let mut all = sources("crates/stratus-sweep/src/builtin", "toml");
    all.extend(texts(&[concat!(
        "[model]\nname = \"digits\"\n[sweep]\nname = \"a\"\nrepetitions = 2\n",
        "[sweep.keys]\n\"train.batch_size\" = [32, 64]\n"
    )]));
    all
}

/// IDX files of images, labels and floats, and gzipped ones.
pub fn idx() -> Vec<Vec<u8>> {
    let mut all = vec![
        [&[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3], [7; 12].as_slice()].concat(),
        [&[0, 0, 8, 1, 0, 0, 0, 4], [3; 4].as_slice()].concat(),
        [&[0, 0, 13, 2, 0, 0, 0, 1, 0, 0, 0, 2], [0; 8].as_slice()].concat(),
    ];
    let gzipped: Vec<Vec<u8>> = all.iter().filter_map(|plain| gzip(plain).ok()).collect();
    all.extend(gzipped);
    all
}

fn gzip(plain: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(plain)?;
    encoder.finish()
}

/// Two records with labels of one byte, and two with labels of two.
pub fn cifar() -> Vec<Vec<u8>> {
    vec![[7; 2 * 3073].to_vec(), [9; 2 * 3074].to_vec(), vec![0; 3073]]
}

/// A small image.
pub fn small_png() -> Vec<u8> {
    fixtures("stratus-data", "png", 4096).into_iter().next().unwrap_or_default()
}

/// Lists of classes, of images and of pairs.
pub fn lists() -> Vec<Vec<u8>> {
    texts(&["cat\ndog\n", "cat/0.png\ndog/1.png\n", "0.png 0.png\n./0.png /a/0.png\n", "\u{feff}dog\r\n\r\n"])
}

/// Answers of Keystone: a token and a catalogue.
pub fn swift() -> Vec<Vec<u8>> {
    texts(&[concat!(
        "token\n{\"token\":{\"catalog\":[{\"type\":\"object-store\",\"endpoints\":[",
        "{\"interface\":\"public\",\"region\":\"region\",\"region_id\":\"region\",",
        "\"url\":\"http://localhost/v1/a\"}]}]}}"
    )])
}

/// Archives with a folder, samples of a shard, links, long names and a sparse file.
pub fn tar() -> Vec<Vec<u8>> {
    let image = small_png();
    let long = format!("{}/0.png", "folder".repeat(25));
    let named: [&[(&str, &[u8])]; 3] = [
        &[("a/0.png", &image), ("a/0.cls", b"1"), ("a/1.png", &image)],
        &[("0.png", &image), ("0.cls", b"0"), ("1.png", &image), ("1.cls", b"1")],
        &[(&long, &image)],
    ];
    let mut all: Vec<Vec<u8>> = named.iter().filter_map(|files| archive(files, false).ok()).collect();
    all.extend(archive(named[1], true));
    all.extend(sources("crates/stratus-data/src/archive", "tar"));
    all
}

fn archive(files: &[(&str, &[u8])], links: bool) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, *content)?;
    }
    if links {
        for kind in [tar::EntryType::Symlink, tar::EntryType::Link, tar::EntryType::Directory] {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(0);
            archive.append_link(&mut header, format!("link{}", kind.as_byte()), "0.png")?;
        }
        let records = [("size", b"5".as_slice()), ("GNU.sparse.major", b"1"), ("path", b"pax")];
        archive.append_pax_extensions(records)?;
    }
    archive.into_inner()
}

/// Annotations with polygons, run lengths and a crowd.
pub fn coco() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"images":[{"id":1,"file_name":"1.jpg","height":8,"width":8}],
            "categories":[{"id":1,"name":"cat"},{"id":3,"name":"dog"}],
            "annotations":[{"id":1,"image_id":1,"category_id":1,"iscrowd":0,"area":4.0,"bbox":[1,1,2,2],
            "segmentation":[[1,1,3,1,3,3,1,3]]}]}"#,
        r#"{"images":[{"id":1,"file_name":"1.jpg","height":4,"width":4}],"categories":[{"id":1,"name":"a"}],
            "annotations":[{"image_id":1,"category_id":1,"iscrowd":1,"area":2,
            "segmentation":{"counts":[2,3,11],"size":[4,4]}},{"image_id":1,"category_id":1,"area":1,
            "segmentation":{"counts":"23;","size":[4,4]}}]}"#,
    ])
}

/// Tables of labels and numbers.
pub fn table() -> Vec<Vec<u8>> {
    let mut all = fixtures("stratus-data", "parquet", 64 << 10);
    all.extend(texts(&[
        "path,scratch,dent\n1.png,1,no\n2.png,,true\n",
        "\u{feff}path;split;patient;age\r\n\"1.png\";train;a;-1.5\r\n2.png;val;b;2e3\r\n",
        "path\ttags\na/1.png\tsea|sun\n\"two\nlines.png\"\t\n3.png\tice\n",
    ]));
    all
}

/// Tables of a run with a row each.
pub fn csv() -> Vec<Vec<u8>> {
    use stratus_run::csv::{EpochRow, IterationRow, Row, UsageRow};
    let mut all = Vec::new();
    for task in Task::ALL {
        for columns in [EpochRow::columns(task), IterationRow::columns(task), UsageRow::columns(task)] {
            let field = |column: &&str| if *column == "gpu_throttling" { "heat+power" } else { "1" };
            let (header, row) = (columns.join(","), columns.iter().map(field).collect::<Vec<_>>().join(","));
            all.push(format!("{header}\n{row}\n{row}\n").into_bytes());
        }
    }
    let columns = stratus_run::variants::COLUMNS.join(",");
    all.push(format!("{columns}\npruned f32,0.5,1.5,2,9,4,7\noriginal,,1,2,3,4,5\n").into_bytes());
    all.extend(texts(&["class,name\n0,cat\n1,\"a, b\"\n", "class,a,b\na,1,2\nb,3,4\n"]));
    all.extend(texts(&[
        "epoch,label,threshold,recall,precision\n4,0,0.3,0.25,1.0\n4,1,1e-9,1.0,0.5\n",
        "epoch,target,number,predicted\n5,0,-1.5,0.1\n5,1,3e7,-0.0\n",
        "label,name,positives,negatives,missing,average_precision,auc,threshold,precision,recall,f1\n\
         0,\"a, b\",3,4,0,0.5,0.5,0.5,1.0,0.5,0.75\n1,b,0,7,0,,,,,,\n",
        "target,name,samples,missing,mean,mae,rmse,r2\n0,age,3,1,31.5,2.0,2.5,-0.5\n",
    ]));
    all.extend(sources("docs", "csv"));
    all
}

/// A JSON file of each kind with its default values.
pub fn run_json() -> Vec<Vec<u8>> {
    [
        serde_json::to_vec(&stratus_run::summary::Summary::default()),
        serde_json::to_vec(&stratus_run::machine::Machine::default()),
        serde_json::to_vec(&stratus_run::sources::Sources::default()),
    ]
    .into_iter()
    .flatten()
    .chain(nested_json())
    .collect()
}

/// Files of a run after the number of the file.
pub fn report() -> Vec<Vec<u8>> {
    let numbered = |number: u8, file: &[u8]| [&[number], file].concat();
    let mut all: Vec<Vec<u8>> = experiments().iter().map(|file| numbered(0, file)).collect();
    all.extend(run_json().iter().zip(1..).map(|(file, number)| numbered(number, file)));
    all.extend(csv().iter().flat_map(|file| (5..10).map(move |number| numbered(number, file))));
    let pruning = r#"{"multiply_adds": [2, 1], "parameters": [2, 1],
        "layers": [{"layer": "a", "channels": [2, 1]}]}"#;
    all.extend([numbered(10, pruning.as_bytes()), numbered(11, br#"{"run": "runs/digits/1"}"#)]);
    all
}

/// A timeline with a program and two iterations.
pub fn timeline() -> Vec<Vec<u8>> {
    use stratus_run::timeline::{Program, TimelineWriter};
    let write = || -> Option<Vec<u8>> {
        let folder = tempfile::tempdir().ok()?;
        let mut writer = TimelineWriter::open(folder.path()).ok()?;
        let program: Program = serde_json::from_value(serde_json::json!({
            "name": "train", "purpose": "train", "batch_size": 8,
            "slots": [{"layers": ["conv1"], "kind": "conv2d", "phase": "forward", "device": "cpu"}]
        }))
        .ok()?;
        let id = writer.register(&program).ok()?;
        for iteration in 0..2 {
            writer.append(id, 1, iteration, 1000, &[300]).ok()?;
        }
        writer.flush().ok()?;
        fs::read(folder.path().join("records.bin")).ok()
    };
    write().into_iter().collect()
}

/// Machines, profiles and tables of forecasts.
pub fn forecast() -> Vec<Vec<u8>> {
    let mut all = sources("crates/stratus-forecast/data", "toml");
    all.extend(sources("crates/stratus-forecast", "csv"));
    all.extend(texts(&[
        "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,\
         SpotPrice\na2-highgpu-1g,12.0,85.0,,,,r,r-a,0.9,0.4\n,,,A100,1.0,,r,r-a,2.9,1.1\n\
         one,8,64,H100,1,\"{'MemoryInfo': {'SizeInMiB': 81920}}\",r,r-a,2.95,1.25\n",
    ]));
    all
}

/// Targets of each kind.
pub fn targets() -> Vec<Vec<u8>> {
    texts(&[
        "[t]\nkind = \"ssh\"\nhost = \"user@host\"\nfolder = \"~/.stratus\"\n",
        "[t]\nkind = \"slurm\"\nhost = \"host\"\npartition = \"gpu\"\ntime = \"1:00:00\"\n",
        "[t]\nkind = \"sky\"\nbucket = \"s3://bucket\"\ncloud = \"aws\"\n[t.environment]\nA = \"b\"\n",
        "[t]\nkind = \"hosts\"\nhosts = [\"a\", \"b\"]\n",
    ])
}

/// Outputs of the scripts of each kind of target.
pub fn launch_answers() -> Vec<Vec<u8>> {
    texts(&[
        "alive=1\nrepetition=1\nbegun=1\nowner=host 12\nheartbeat_s=3\nepochs=2\nexit=0\nlast=done\n",
        "repetition=1\nqueue=12_[1,3-5%2]|PENDING|Priority\naccount=12_1|COMPLETED\nqueue_unknown=1\n",
        r#"[{"job_name": "stratus-id-1", "status": "RUNNING", "job_id": 1, "failure_reason": null}]"#,
        "12 ./epochs.csv\n100 ./checkpoints/0000000001/weights.safetensors\n",
        "welcome\nstratus-token-begins\noutput\nstratus-token-ended 0\nfarewell\n",
    ])
}

/// Responses with and without a length, in part, in chunks, and errors.
pub fn http() -> Vec<Vec<u8>> {
    texts(&[
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nETag: \"a\"\r\n\r\n0123456789",
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 3-7/10\r\nContent-Length: 5\r\n\r\n34567",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n0\r\n\r\n",
        "HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy",
        "HTTP/1.1 416 Range\r\nContent-Range: bytes */0\r\nContent-Length: 0\r\n\r\n",
    ])
}

/// The version, a handle, names, attributes and a status, each after its length.
pub fn sftp() -> Vec<Vec<u8>> {
    let packet = |content: &[u8]| [&[content.len() as u8], content].concat();
    let version = packet(&[2, 0, 0, 0, 3]);
    let handle = packet(&[102, 0, 0, 0, 0, 0, 0, 0, 1, b'h']);
    let entry = [&[0, 0, 0, 1, b'a', 0, 0, 0, 0, 0, 0, 0, 5][..], &7u64.to_be_bytes(), &[0, 0, 0x81, 0xa4]];
    let names = packet(&[&[104, 0, 0, 0, 1, 0, 0, 0, 1][..], &entry.concat()].concat());
    let end = packet(&[101, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    let closed = packet(&[101, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    vec![[version.clone(), handle, names, end, closed].concat(), version]
}
