//! Hostile files of every kind: none makes the program hold more than 256 MB above what it needs anyway, and
//! the message names the cause.

#![cfg(target_os = "linux")]

mod files;

use self::files::{Jpeg, PngColour, field, node, number, varint};
use crate::common::{CommandOutput, TestDir, root};
use std::fs;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// The memory that a hostile file may take.
const MAX_BYTES: u64 = 256_000_000;
/// The memory of the program itself: it is measured for each command, and never more than this.
const MAX_BASE_BYTES: u64 = 128_000_000;

/// Runs the program, and returns its greatest memory too.
fn run(dir: &TestDir, arguments: &[&str]) -> (CommandOutput, u64) {
    let (out, err) = (dir.path("stdout"), dir.path("stderr"));
    let mut command = dir.command(arguments);
    // No file here needs oneDNN. Its mapped pages would count as memory, and their number depends on the page
    // cache: more if the library has just been installed.
    command.env("STRATUS_ONEDNN", dir.path("none"));
    command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap()).stdin(Stdio::null());
    let mut child = command.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    let code = loop {
        // The value only grows, until the process has ended and its memory is gone.
        let status = fs::read_to_string(&status).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let value = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        peak_kib = peak_kib.max(value.unwrap_or(0));
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        std::thread::sleep(Duration::from_micros(500));
    };
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    let ran = CommandOutput { code, out: text(&out), err: text(&err) };
    assert!(!ran.err.contains("panicked"), "{}", ran.err);
    (ran, peak_kib * 1024)
}

/// Runs the program on a file with some content.
struct Reader<'a> {
    dir: TestDir,
    file: &'a str,
    arguments: &'a [&'a str],
    base_bytes: u64,
}

impl<'a> Reader<'a> {
    /// A reader of `file`, whose memory is compared with that for a file of one byte.
    fn new(dir: TestDir, file: &'a str, arguments: &'a [&'a str]) -> Self {
        let mut reader = Self { dir, file, arguments, base_bytes: 0 };
        reader.base_bytes = reader.run(b"x").1;
        assert!(reader.base_bytes < MAX_BASE_BYTES, "{} bytes", reader.base_bytes);
        reader
    }

    fn run(&self, content: &[u8]) -> (CommandOutput, u64) {
        let path = self.dir.path(self.file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        run(&self.dir, self.arguments)
    }

    /// Checks the memory, the exit code, and that the output contains `cause`.
    fn expect(&self, content: &[u8], code: i32, cause: &str) {
        let (ran, peak) = self.run(content);
        let (ran, own) = (ran.expect(code), peak.saturating_sub(self.base_bytes));
        assert!(own <= MAX_BYTES, "{own} bytes for `{cause}`, a file of {} bytes", content.len());
        assert!(ran.err.contains(cause) || ran.out.contains(cause), "{cause}:\n{}\n{}", ran.out, ran.err);
    }
}

/// A folder of images with one in `photos/train/a/0.png`.
fn image_reader<'a>(library: Option<&str>) -> Reader<'a> {
    let mut dir = TestDir::without_kernel_cache();
    dir.variables.extend(library.map(|library| ("STRATUS_LIBJPEG", library.into())));
    for other in ["photos/train/a/1.png", "photos/val/a/1.png"] {
        fs::create_dir_all(dir.path(other).parent().unwrap()).unwrap();
        fs::write(dir.path(other), files::png(8, PngColour::Rgb, true)).unwrap();
    }
    Reader::new(dir, "photos/train/a/0.png", &["data", "check", "photos"])
}

/// Images of 2^27 pixels are the largest that are decoded at all.
const LARGEST_SIDE: usize = 11_584;

#[test]
fn png_bombs_are_refused_and_large_images_decoded() {
    let reader = image_reader(None);
    let whole = |side, colour| files::png(side, colour, true);
    reader.expect(&files::png(LARGEST_SIDE, PngColour::Rgb, false), 1, "the file ends before the image does");
    let out_of_proportion =
        "decoding takes 384 MiB, but at most 192 MiB are allowed, or 128 times the file's";
    reader.expect(&whole(LARGEST_SIDE, PngColour::Rgb), 1, out_of_proportion);
    reader.expect(&whole(LARGEST_SIDE, PngColour::Palette), 1, "decoding takes 512 MiB");
    reader.expect(&whole(8_000, PngColour::Rgb), 0, "train: 2 images, 0 damaged");
}

#[test]
fn jpeg_bombs_are_refused_and_large_images_decoded() {
    for library in [None, Some("none")] {
        let reader = image_reader(library);
        for kind in [Jpeg::Baseline, Jpeg::Progressive] {
            let header = files::jpeg(LARGEST_SIDE, kind, false);
            reader.expect(&header, 1, "the file ends before the image does");
            let whole = files::jpeg(LARGEST_SIDE, kind, true);
            let bytes = if kind == Jpeg::Baseline { 384 } else { 1152 };
            reader.expect(&whole, 1, &format!("decoding takes {bytes} MiB, but at most 192 MiB"));
            // Nine bytes per pixel, with six of coefficients.
            let side = if kind == Jpeg::Baseline { 8_000 } else { 4_600 };
            reader.expect(&files::jpeg(side, kind, true), 0, "train: 2 images, 0 damaged");
        }
        let scans = files::jpeg(4_000, Jpeg::ManyScans(100), true);
        reader.expect(&scans, 1, "the JPEG has more than 100 scans");
    }
}

/// A lossless image of one colour takes no bits for its pixels, so its length does not bound it.
#[test]
fn webp_bombs_are_refused_and_large_images_decoded() {
    let reader = image_reader(None);
    reader.expect(&files::webp(16_383), 1, "more than 134217728 pixels");
    reader.expect(&files::webp(LARGEST_SIDE), 1, "decoding takes 1152 MiB, but at most 192 MiB");
    reader.expect(&files::webp(4_700), 0, "train: 2 images, 0 damaged");
    let whole = files::webp(64);
    reader.expect(&whole[..whole.len() - 1], 1, "the file ends before the image does");
}

/// A photograph of 108 megapixels, of which a phone writes 24 MB, compressed to a third of that.
#[test]
#[ignore = "decodes 108 megapixels several times, which takes a minute"]
fn photographs_in_proportion_are_decoded() {
    for library in [None, Some("none")] {
        let reader = image_reader(library);
        for kind in [Jpeg::Baseline, Jpeg::Progressive] {
            let mut photograph = files::jpeg(10_400, kind, true);
            // Data of an application, as phones write before the image; 15 segments of 65 kB per MB.
            let segment = [&[0xff, 0xe5, 0xff, 0xff][..], &[0; 65_533]].concat();
            photograph.splice(2..2, segment.repeat(120));
            let (ran, _) = reader.run(&photograph);
            assert!(ran.expect(0).out.contains("train: 2 images, 0 damaged"));
        }
    }
}

#[test]
fn archives_with_holes_and_wrong_lengths_are_refused() {
    let dir = TestDir::without_kernel_cache();
    let image = files::png(8, PngColour::Rgb, true);
    let folder = Reader::new(dir, "photos/train.tar", &["data", "check", "photos/train.tar"]);
    let hole = "the sparse file has 268435455 bytes, but the archive contains only";
    folder.expect(&files::tar("a/0.png", &image, Some((1 << 28) - 1)), 1, hole);
    folder.expect(&files::tar("a/0.png", &image, None), 0, "1 images, 0 damaged");

    let dir = TestDir::without_kernel_cache();
    let folder = Reader::new(dir, "photos/train.zip", &["data", "check", "photos/train.zip"]);
    folder.expect(&files::zip("a/0.png", &image, None), 0, "1 images, 0 damaged");
    let zeros = vec![0; 64 << 20];
    folder.expect(&files::zip("a/0.png", &zeros, None), 1, "the file has 67108864 bytes, but the archive");
    let claimed = files::zip("a/0.png", &image, Some((1 << 28) - 1));
    folder.expect(&claimed, 1, "the file has 268435455 bytes, but the archive contains only");
    folder.expect(&claimed[..claimed.len() - 22], 1, "the zip archive has no directory");

    let dir = TestDir::without_kernel_cache();
    fs::create_dir(dir.path("shards")).unwrap();
    fs::write(dir.path("shards/val-000000.tar"), files::tar("0.png", &image, None)).unwrap();
    let shards =
        Reader::new(dir, "shards/train-000000.tar", &["data", "check", "shards", "--path", "shards"]);
    let class = files::tar("0.cls", b"0", None);
    let sparse = files::tar("0.png", &image, Some((1 << 28) - 1));
    let entries = |image: &[u8]| [&image[..image.len() - 1024], &class[..]].concat();
    shards.expect(&entries(&sparse), 1, hole);
    let long = files::tar("0.png", &image, None);
    shards.expect(&long[..540], 1, "the archive ends at byte 540, inside 0.png");
    // Archives are not unpacked.
    shards.expect(&files::idx_gz(1_000, 512), 1, "not a tar archive");
}

#[test]
fn compressed_and_long_records_are_refused() {
    let dir = TestDir::without_kernel_cache();
    fs::create_dir(dir.path("digits")).unwrap();
    for name in ["train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"] {
        symlink(root().join("data/mnist").join(name), dir.path("digits").join(name)).unwrap();
    }
    let check = ["data", "check", "mnist", "--path", "digits", "--set", "data.verify=false"];
    let idx = Reader::new(dir, "digits/train-images-idx3-ubyte.gz", &check);
    let declared = "the header declares 294000000 bytes, but";
    idx.expect(&files::idx_gz(60_000, 70), 1, declared);
    let header = [&[0, 0, 8, 3][..], &[0xff; 12]].concat();
    idx.expect(&header, 1, "the maximum is 4 GiB");

    let dir = TestDir::without_kernel_cache();
    fs::create_dir(dir.path("cifar")).unwrap();
    for name in ["data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"] {
        fs::write(dir.path("cifar").join(name).with_extension("bin"), [0; 3073]).unwrap();
    }
    let check = ["data", "check", "cifar10", "--path", "cifar", "--set", "data.verify=false"];
    let cifar = Reader::new(dir, "cifar/data_batch_1.bin", &check);
    // The file system stores no zeros either.
    File::create(cifar.dir.path(cifar.file)).unwrap().set_len(3073 * 300_000).unwrap();
    let (ran, peak) = run(&cifar.dir, &check);
    let cause = "has 921900000 bytes, more than any file of `cifar10`";
    assert!(ran.err.contains(cause), "{}", ran.err);
    assert!(peak < MAX_BYTES, "{peak}");
}

#[test]
fn weights_of_long_headers_and_many_objects_are_bounded() {
    let dir = TestDir::without_kernel_cache();
    let data = ["--set", "data.name=synthetic", "--set", "data.shape=[1, 28, 28]"];
    let device = ["--set", "train.device=reference", "--set", "data.synthetic.classes=10"];
    let evaluate = |file| [&["eval", "digits", "--weights", file], &data[..], &device].concat();
    let (safetensors, torch) = (evaluate("w.safetensors"), evaluate("w.pth"));
    let reader = Reader::new(dir, "w.safetensors", &safetensors);
    reader.expect(&[&[0xff; 8][..], b"{}"].concat(), 1, "more than 4194304 bytes in the header");
    let entries =
        |count: usize, entry: &dyn Fn(usize) -> String| (0..count).map(entry).collect::<Vec<_>>().join(",");
    let long = format!("{{\"__metadata__\":{{{}}}}}", entries(500_000, &|at| format!("\"{at:x}\":\"\"")));
    reader.expect(&files::safetensors(&long), 1, "more than 4194304 bytes in the header");
    let metadata = format!("{{\"__metadata__\":{{{}}}}}", entries(350_000, &|at| format!("\"{at:x}\":\"\"")));
    reader.expect(&files::safetensors(&metadata), 2, "0 of the 17 tensors");
    let tensor = |at| format!("\"{at:x}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
    let tensors = format!("{{{}}}", entries(75_000, &tensor));
    reader.expect(&files::safetensors(&tensors), 2, "0 of the 17 tensors");

    let reader = Reader::new(TestDir::without_kernel_cache(), "w.pth", &torch);
    for (object, kind) in [(b']', "a list"), (b')', "a tuple"), (b'}', "a PyTorch file without a state dict")]
    {
        let pickle = [b"\x80\x02", &[object].repeat(1 << 20)[..], b"."].concat();
        reader.expect(&files::pth(&pickle), 1, kind);
    }
    let pickle = [b"\x80\x02", &[b']'].repeat((1 << 20) + 1)[..], b"."].concat();
    reader.expect(&files::pth(&pickle), 1, "more than 1048576");
}

#[test]
fn onnx_models_of_huge_weights_and_many_attributes_are_refused() {
    let import = ["model", "import", "m.onnx", "--out", "imported"];
    let reader = Reader::new(TestDir::without_kernel_cache(), "m.onnx", &import);
    let attributes = field(1, &field(5, &field(5, b"")).repeat(64)).repeat(50_000);
    reader.expect(&files::onnx(&attributes, 1, "y"), 1, "more than 400000 attributes");
    let proportion = "weights and constants may use 64 MiB or 16 times the file";
    // Weights of 1 GiB that a node fills with zeros.
    let shape: Vec<u8> = [16_384, 16_384, 1, 1].into_iter().flat_map(varint).collect();
    let shape = field(5, &[number(1, 4), number(2, 7), field(7, &shape), field(8, b"s")].concat());
    let filled = [shape, node("ConstantOfShape", &["s"], "w"), node("Conv", &["x", "w"], "y")].concat();
    reader.expect(&files::onnx(&filled, 16_384, "y"), 1, proportion);
    // 500 layers share weights of 4 MiB, and each has a copy.
    let dimensions = [number(1, 1024), number(1, 1024), number(1, 1), number(1, 1), number(2, 1)].concat();
    let mut graph = field(5, &[dimensions, field(8, b"w"), field(9, &vec![0; 4 << 20])].concat());
    let name = |layer: usize| if layer == 0 { "x".to_owned() } else { format!("v{layer}") };
    (0..500).for_each(|layer| graph.extend(node("Conv", &[&name(layer), "w"], &name(layer + 1))));
    reader.expect(&files::onnx(&graph, 1024, "v500"), 1, proportion);
}

#[test]
fn annotations_and_texts_are_bounded() {
    let image = files::png(8, PngColour::Rgb, true);
    let dir = TestDir::without_kernel_cache();
    for folder in ["coco/train2017", "coco/val2017"] {
        fs::create_dir_all(dir.path(folder)).unwrap();
        fs::write(dir.path(folder).join("0.png"), &image).unwrap();
    }
    let check = ["data", "check", "coco", "--path", "coco"];
    let coco = Reader::new(dir, "coco/annotations/instances_train2017.json", &check);
    let annotated = |segmentation: &str| {
        let image = r#"{"id":1,"file_name":"0.png","height":8,"width":8}"#;
        let rest = r#"{"id":1,"image_id":1,"category_id":1,"segmentation":"#;
        let categories = r#"[{"id":1,"name":"a"}]"#;
        format!(
            "{{\"images\":[{image}],\"categories\":{categories},\"annotations\":[{rest}{segmentation}}}]}}"
        )
    };
    let zeros = "0,".repeat(4_000_000);
    coco.expect(annotated(&format!("[[{zeros}0]]")).as_bytes(), 1, "a polygon of 4000001 numbers");
    let run_lengths = format!("{{\"size\":[8,8],\"counts\":[{zeros}0]}}");
    coco.expect(annotated(&run_lengths).as_bytes(), 1, "run lengths add up to 0 pixels");
    let text = format!("\"{}\"", "0".repeat(8_000_000));
    coco.expect(annotated(&text).as_bytes(), 1, "invalid type: string");
    coco.expect("[".repeat(8_000_000).as_bytes(), 1, "not a COCO annotation file");

    let plan = ["plan", "e.toml", "--set", "train.device=reference"];
    let toml = Reader::new(TestDir::without_kernel_cache(), "e.toml", &plan);
    let long = 1 << 20;
    toml.expect("#".repeat(long + 1).as_bytes(), 2, "it is larger than 1 MiB");
    for part in ["[],", "0,", "{},"] {
        let list = format!("a = [{}]", part.repeat((long - 100) / part.len()));
        toml.expect(list.as_bytes(), 2, "unknown key `a`");
    }
    let keys: String = (0..100_000).map(|at| format!("k{at:x} = 0\n")).collect();
    toml.expect(keys.as_bytes(), 2, "unknown key `k0`");
    let layers = "[[layer]]\n".repeat(long / 11);
    toml.expect(layers.as_bytes(), 2, "layer file");

    let sweep = ["sweep", "s.toml", "--out", "sweeps/s"];
    let reader = Reader::new(TestDir::without_kernel_cache(), "s.toml", &sweep);
    let seeds: Vec<String> = (0..5_000).map(|seed| seed.to_string()).collect();
    let names = format!("[\"{}\", \"b\"]", "a".repeat(900_000));
    let text = format!(
        "[model]\nname = \"digits\"\n[sweep.keys]\n\"train.seed\" = [{}]\n\"experiment.name\" = {names}\n",
        seeds.join(", ")
    );
    reader.expect(text.as_bytes(), 2, "the texts and lists of 10000 cells take more than 64 MiB");
}

#[test]
fn files_of_a_run_are_bounded() {
    let dir = TestDir::without_kernel_cache();
    let settings = [
        "data.name=synthetic",
        "data.shape=[1, 28, 28]",
        "data.synthetic.images=64",
        "data.synthetic.validation_images=8",
        "data.synthetic.classes=10",
        "train.batch_size=16",
        "train.device=reference",
    ];
    let settings = settings.map(|setting| ["--set", setting]);
    let train = ["train", "digits", "--out", "run", "--set", "train.epochs=1"];
    dir.run(&[&train, settings.as_flattened()].concat()).expect(0);
    // The machine's peaks are measured once.
    dir.run(&["report", "run"]).expect(0);
    let whole = |name: &str| fs::read(dir.path("run").join(name)).unwrap();
    let checkpoint = "checkpoints/0000000004";
    let (manifest, timeline) = (format!("{checkpoint}/manifest.json"), whole("timeline/records.bin"));
    let names = ["summary.json", "machine.json", "plan.json", "iterations.csv", "timeline/records.bin"];
    let originals = names.map(|name| (name, whole(name)));
    let restore =
        || originals.iter().for_each(|(name, file)| fs::write(dir.path("run").join(name), file).unwrap());
    let (_, base) = run(&dir, &["report", "run"]);
    assert!(base < MAX_BASE_BYTES, "{base}");
    let check = |name: &str, content: &[u8], code: i32, cause: &str, arguments: &[&str]| {
        fs::write(dir.path("run").join(name), content).unwrap();
        let (ran, peak) = run(&dir, arguments);
        let ran = ran.expect(code);
        assert!(peak.saturating_sub(base) <= MAX_BYTES, "{peak} bytes for {name}");
        assert!(ran.err.contains(cause), "{cause}:\n{}", ran.err);
        restore();
    };
    let report = ["report", "run"];
    let lists = |bytes: usize| format!("[{}[]]", "[],".repeat(bytes / 3)).into_bytes();
    let damaged = "is damaged: not the expected JSON";
    for name in ["summary.json", "machine.json"] {
        check(name, &lists(15 << 20), 1, damaged, &report);
        check(name, &lists(17 << 20), 1, "it is larger than 16 MiB", &report);
        check(name, "{\"a\":".repeat(1 << 20).as_bytes(), 1, damaged, &report);
    }
    check("plan.json", &lists(60 << 20), 0, "plan.json is damaged", &report);
    check("plan.json", &lists(65 << 20), 0, "the limit is 67108864", &report);
    // A plan of a million placements.
    let plan = String::from_utf8(whole("plan.json")).unwrap();
    let (begin, rest) = plan.split_once("\"placements\":").unwrap();
    let list = &rest[rest.find('[').unwrap() + 1..];
    let mut stream = serde_json::Deserializer::from_str(list).into_iter::<serde_json::Value>();
    let first = stream.next().unwrap().unwrap().to_string();
    let many =
        format!("{begin}\"placements\":[{},{list}", vec![first.as_str(); (60 << 20) / first.len()].join(","));
    check("plan.json", many.as_bytes(), 0, "plan.json is damaged", &report);
    let rows = String::from_utf8(whole("iterations.csv")).unwrap();
    let long = format!("{}\n{}", rows.lines().next().unwrap(), "1".repeat(30 << 20));
    check("iterations.csv", long.as_bytes(), 1, "longer than 64 KiB", &report);
    // The files of a run that `stratus optimise` made.
    fs::create_dir(dir.path("run/optimise")).unwrap();
    check("optimise/request.json", &lists(15 << 20), 0, damaged, &report);
    let layers = vec!["{\"layer\":\"\",\"channels\":[1,1]}"; (15 << 20) / 32].join(",");
    let pruning = format!("{{\"multiply_adds\":[1,1],\"parameters\":[1,1],\"layers\":[{layers}]}}");
    check("optimise/pruning.json", pruning.as_bytes(), 0, "", &report);
    let header = stratus_run::variants::COLUMNS.join(",");
    let variants =
        |bytes: usize| format!("{header}\n{}", "a,0.5,1,1,1,1,1\n".repeat(bytes / 16)).into_bytes();
    check("variants.csv", &variants(1_000_000), 0, "", &report);
    check("variants.csv", &variants(60 << 20), 0, "variants.csv: it is larger than 1 MiB", &report);
    let mut frame = timeline.clone();
    frame[12..16].copy_from_slice(&((1u32 << 26) - 1).to_le_bytes());
    check("timeline/records.bin", &frame, 0, "", &report);
    frame.resize(60 << 20, 0);
    check("timeline/records.bin", &frame, 0, "", &report);
    // The run has a damaged checkpoint after this, and starts again.
    let train = ["train", "run"];
    check(&manifest, &lists(15 << 20), 0, "manifest.json: not the expected JSON", &train);
}
