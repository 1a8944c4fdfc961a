//! Files written by PyTorch.

use std::collections::BTreeMap;

use crate::common::{bytes, open, path, ramp};
use stratus_weights::{Dtype, Format, TensorRef, WeightsFile, write_safetensors};

/// The names, shapes and types of `small`, a state dict with every kind of tensor that torchvision uses.
const SMALL: [(&str, &[usize], Dtype); 8] = [
    ("conv1.weight", &[3, 2, 3, 3], Dtype::F32),
    ("bn1.weight", &[3], Dtype::F32),
    ("bn1.bias", &[3], Dtype::F32),
    ("bn1.running_mean", &[3], Dtype::F32),
    ("bn1.running_var", &[3], Dtype::F32),
    ("bn1.num_batches_tracked", &[], Dtype::I64),
    ("fc.weight", &[4, 3], Dtype::F32),
    ("fc.bias", &[4], Dtype::F32),
];

fn check_small(file: &WeightsFile) {
    let found: Vec<_> =
        file.tensors().iter().map(|t| (t.name.as_str(), t.shape.as_slice(), t.dtype)).collect();
    assert_eq!(found, SMALL);
    assert_eq!(file.float_tensors().count(), 7);
    for tensor in file.float_tensors() {
        assert_eq!(file.read(tensor).unwrap(), ramp(tensor.elements()), "{}", tensor.name);
    }
    let counter = file.get("bn1.num_batches_tracked").unwrap();
    assert_eq!(file.read_i64(counter).unwrap(), [7]);
    assert!(file.get("bn1").is_none());
}

fn message(name: &str) -> String {
    let error = open(name).unwrap_err();
    assert_eq!(error.path, path(name));
    error.problem.to_string()
}

#[test]
fn reads_a_state_dict() {
    let file = open("small.pth").unwrap();
    assert_eq!((file.format(), file.wrapper_key(), file.prefix()), (Format::Torch, None, ""));
    check_small(&file);
    check_small(&WeightsFile::from_bytes("in memory", bytes("small.pth")).unwrap());
}

#[test]
fn reads_zip64_archives() {
    check_small(&open("zip64.pth").unwrap());
}

#[test]
fn reads_safetensors() {
    let file = open("small.safetensors").unwrap();
    assert_eq!(file.format(), Format::Safetensors);
    assert_eq!(file.metadata().get("format").map(String::as_str), Some("pt"));
    check_small(&file);
}

#[test]
fn finds_the_state_dict_of_a_checkpoint_and_strips_data_parallel() {
    let file = open("nested.pth").unwrap();
    assert_eq!((file.wrapper_key(), file.prefix()), (Some("state_dict"), "module."));
    check_small(&file);
    let file = open("model.pth").unwrap();
    assert_eq!((file.wrapper_key(), file.prefix()), (Some("model"), ""));
    check_small(&file);
}

/// The reference scripts of torchvision and timm also save arguments, metrics and paths.
#[test]
fn reads_checkpoints_of_reference_scripts() {
    for (name, key) in [("torchvision_script.pth", "model"), ("timm_script.pth", "state_dict")] {
        let file = open(name).unwrap();
        assert_eq!((file.wrapper_key(), file.prefix()), (Some(key), ""), "{name}");
        check_small(&file);
    }
}

#[test]
fn strips_wrapper_prefixes_from_names() {
    let values = ramp(6);
    let written = |names: &[&str]| {
        let shapes: Vec<&[usize]> = names.iter().map(|_| [2, 3].as_slice()).collect();
        let tensors = names.iter().zip(shapes).map(|(name, shape)| TensorRef::f32(name, shape, &values));
        let tensors: Vec<_> = tensors.collect();
        let mut out = Vec::new();
        write_safetensors(&mut out, &tensors, &BTreeMap::new()).unwrap();
        WeightsFile::from_bytes("in memory", out).unwrap()
    };
    for prefix in ["module.", "_orig_mod.", "model.", "module._orig_mod.", "_orig_mod.module.model."] {
        let file = written(&[&format!("{prefix}conv1.weight"), &format!("{prefix}fc.weight")]);
        assert_eq!(file.prefix(), prefix);
        let mut names: Vec<_> = file.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["conv1.weight", "fc.weight"]);
        let shape = [2, 3].as_slice();
        let bare = file.match_network([("conv1.weight", shape), ("fc.weight", shape)]);
        assert!(bare.is_complete() && bare.unexpected.is_empty(), "{bare:?}");
        // The names of the network start with the prefix.
        let prefixed = [format!("{prefix}conv1.weight"), format!("{prefix}fc.weight")];
        let whole = file.match_network(prefixed.iter().map(|name| (name.as_str(), shape)));
        assert!(whole.is_complete() && whole.unexpected.is_empty(), "{whole:?}");
        for name in &prefixed {
            assert_eq!(file.read(file.get(name).unwrap()).unwrap(), values);
        }
    }
    // A prefix that not all names share belongs to a layer.
    for names in [["model.conv1.weight", "fc.weight"], ["module.", "module.fc.weight"]] {
        assert_eq!(written(&names).prefix(), "");
    }
}

#[test]
fn reads_types_views_and_parameters() {
    for name in ["types.pth", "types_protocol4.pth"] {
        let file = open(name).unwrap();
        let read = |name: &str| {
            let tensor = file.get(name).unwrap();
            (tensor.shape.clone(), file.read(tensor).unwrap())
        };
        for name in ["half", "bfloat", "double"] {
            assert_eq!(read(name), (vec![5], ramp(5)), "{name}");
        }
        let dtypes =
            ["half", "bfloat", "double", "bytes", "ints", "flags"].map(|n| file.get(n).unwrap().dtype);
        assert_eq!(dtypes, [Dtype::F16, Dtype::Bf16, Dtype::F64, Dtype::U8, Dtype::I32, Dtype::Bool]);
        assert_eq!(read("single"), (vec![], vec![1.5]));
        assert_eq!(read("empty"), (vec![0, 3], vec![]));
        assert_eq!(read("parameter"), (vec![3, 2], ramp(6)));
        assert_eq!(read("frozen"), (vec![2], ramp(2)));

        let base = ramp(24);
        let at = |i: usize, j: usize, k: usize| base[(i * 3 + j) * 4 + k];
        assert_eq!(read("base"), (vec![2, 3, 4], base.clone()));
        assert_eq!(read("row"), (vec![3, 4], base[12..].to_vec()));
        let transposed = (0..4).flat_map(|k| (0..3).flat_map(move |j| (0..2).map(move |i| (i, j, k))));
        assert_eq!(read("transposed"), (vec![4, 3, 2], transposed.map(|(i, j, k)| at(i, j, k)).collect()));
        let every_other =
            (0..2).flat_map(|i| [0, 2].into_iter().flat_map(move |j| [1, 2].map(|k| (i, j, k))));
        assert_eq!(read("every_other"), (vec![2, 2, 2], every_other.map(|(i, j, k)| at(i, j, k)).collect()));
        assert_eq!(read("channels_last"), (vec![2, 3, 2, 2], ramp(24)));

        assert_eq!(file.read_i64(file.get("scalar").unwrap()).unwrap(), [41]);
        let problem = |name: &str| file.read(file.get(name).unwrap()).unwrap_err().problem.to_string();
        assert_eq!(
            problem("scalar"),
            "tensor scalar: unsupported type int64; float64, float32, float16 and bfloat16 are supported"
        );
    }
}

#[test]
fn reads_types_of_safetensors() {
    let file = open("types.safetensors").unwrap();
    for name in ["half", "bfloat", "double"] {
        assert_eq!(file.read(file.get(name).unwrap()).unwrap(), ramp(5), "{name}");
    }
    let transposed = file.get("transposed").unwrap();
    let values = ramp(6);
    let expected = [0, 3, 1, 4, 2, 5].map(|i| values[i]);
    assert_eq!(
        (transposed.shape.as_slice(), file.read(transposed).unwrap().as_slice()),
        (&[3, 2][..], &expected[..])
    );
    assert_eq!(file.get("eighth").unwrap().dtype, Dtype::Other);
    assert!(file.float_tensors().all(|tensor| tensor.name != "eighth"));
}

#[test]
fn rejects_code_by_name_without_executing_it() {
    assert_eq!(
        message("malicious.pth"),
        "refused pickle global `posix.system` (code execution); nothing was executed; save only the tensors: \
         torch.save(model.state_dict(), path)"
    );
    assert!(
        message("whole_model.pth")
            .starts_with("refused pickle global `torch.nn.modules.container.Sequential`")
    );
}

#[test]
fn rejects_other_files_with_a_remedy() {
    for (name, start) in [
        (
            "legacy.pth",
            "this is a PyTorch file in the format before version 1.6; save it again with a current",
        ),
        ("torchscript.pt", "this is a TorchScript program; save only its tensors"),
        ("deflated.pth", "this is a compressed archive; repack it without compression"),
        ("plain_pickle.pkl", "this is a plain Python pickle; save the tensors with torch.save"),
        (
            "ambiguous.pth",
            "this is a PyTorch file with several state dicts (model, state_dict); save only the one",
        ),
        ("list.pth", "this is a PyTorch file with a list instead of a state dict; save a state dict"),
    ] {
        let message = message(name);
        assert!(message.starts_with(start), "{name}: {message}");
    }
    let bytes = |bytes: &[u8]| WeightsFile::from_bytes("f", bytes.to_vec()).unwrap_err().to_string();
    assert_eq!(bytes(b""), "f: this is an empty file; download or save it again");
    assert!(bytes(b"<!doctype html>").starts_with("f: this is an HTML page instead of weights"));
    assert!(bytes(b"version https://git-lfs.github.com/spec/v1").starts_with("f: this is a Git LFS pointer"));
    assert!(
        bytes(b"no weights at all").starts_with("f: this is neither safetensors nor a PyTorch file; pass a")
    );
    let zip = crate::common::archive(&[("word/document.xml", b"<xml/>"), ("mimetype", b"")]);
    assert!(bytes(&zip).starts_with("f: this is another zip archive (it contains mimetype); pass"));
    assert!(WeightsFile::open("/").unwrap_err().to_string().contains("this is a folder"));
    assert!(open("absent.pth").unwrap_err().to_string().contains("absent.pth: cannot open: "));
}

#[test]
fn rejects_big_endian_files() {
    let file = crate::common::archive(&[("a/data.pkl", b"}."), ("a/byteorder", b"big")]);
    let error = WeightsFile::from_bytes("f", file).unwrap_err().to_string();
    assert!(error.starts_with("f: this is a big-endian PyTorch file; save it again"), "{error}");
}

#[test]
fn written_files_survive_a_round_trip() {
    let (weight, steps) = (ramp(6), [3]);
    let tensors = [
        TensorRef::f32("fc.weight", &[2, 3], &weight),
        TensorRef::i64("bn1.num_batches_tracked", &[], &steps),
        TensorRef::f32("empty", &[0, 3], &[]),
    ];
    let metadata = BTreeMap::from([("network".to_string(), "resnet18".to_string())]);
    let mut bytes = Vec::new();
    write_safetensors(&mut bytes, &tensors, &metadata).unwrap();
    let read = WeightsFile::from_bytes("weights.safetensors", bytes).unwrap();
    let expected = [("format", "pt"), ("network", "resnet18")].map(|(k, v)| (k.to_string(), v.to_string()));
    assert_eq!(read.metadata(), &BTreeMap::from(expected));
    assert_eq!(read.read(read.get("fc.weight").unwrap()).unwrap(), weight);
    assert_eq!(read.read_i64(read.get("bn1.num_batches_tracked").unwrap()).unwrap(), steps);
    assert_eq!(read.get("empty").unwrap().shape, [0, 3]);
}

#[test]
fn rejects_invalid_tensors_before_writing() {
    let rejected = |tensors: &[TensorRef<'_>]| {
        let mut bytes = Vec::new();
        let error = write_safetensors(&mut bytes, tensors, &BTreeMap::new()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(bytes.is_empty(), "nothing is written after an error");
        error.to_string()
    };
    let one = TensorRef::f32("a", &[1], &[1.0]);
    assert_eq!(rejected(&[TensorRef::f32("a", &[2], &[1.0])]), "tensor a has 1 values for the shape [2]");
    assert_eq!(rejected(&[one, one]), "duplicate tensor name a");
    assert_eq!(
        rejected(&[TensorRef::f32("__metadata__", &[1], &[1.0])]),
        "duplicate tensor name __metadata__"
    );
}

#[test]
fn matches_a_network_with_another_head() {
    let file = open("nested.pth").unwrap();
    let expected: Vec<(&str, &[usize])> = SMALL
        .iter()
        .map(|&(name, shape, _)| match name {
            "fc.weight" => (name, &[9, 3][..]),
            "fc.bias" => (name, &[9][..]),
            _ => (name, shape),
        })
        .collect();
    let report = file.match_network(expected);
    assert_eq!(report.loaded.len(), 5);
    assert_eq!(
        report.mismatched.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(),
        ["fc.weight", "fc.bias"]
    );
    assert!(report.missing.is_empty() && report.unexpected.is_empty() && !report.is_complete());
}
