//! Files that PyTorch has written, read without it.

use std::collections::BTreeMap;

use crate::common::{bytes, open, path, ramp};
use stratus_weights::{Dtype, Format, TensorRef, WeightsFile, write_safetensors};

/// The names, shapes and types of `small`, a state dict of every kind of tensor that torchvision's have.
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
    assert_eq!(file.floats().count(), 7);
    for tensor in file.floats() {
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
fn a_state_dict_is_read() {
    let file = open("small.pth").unwrap();
    assert_eq!((file.format(), file.unwrapped(), file.prefix()), (Format::Torch, None, ""));
    check_small(&file);
    check_small(&WeightsFile::from_bytes("in memory", bytes("small.pth")).unwrap());
}

#[test]
fn an_archive_with_zip64_fields_is_read() {
    check_small(&open("zip64.pth").unwrap());
}

#[test]
fn safetensors_are_read() {
    let file = open("small.safetensors").unwrap();
    assert_eq!(file.format(), Format::Safetensors);
    assert_eq!(file.metadata().get("format").map(String::as_str), Some("pt"));
    check_small(&file);
}

#[test]
fn a_checkpoint_is_unwrapped_and_data_parallel_taken_off() {
    let file = open("nested.pth").unwrap();
    assert_eq!((file.unwrapped(), file.prefix()), (Some("state_dict"), "module."));
    check_small(&file);
    let file = open("model.pth").unwrap();
    assert_eq!((file.unwrapped(), file.prefix()), (Some("model"), ""));
    check_small(&file);
}

/// What torchvision's and timm's reference scripts save: arguments, measures and paths beside the weights.
#[test]
fn checkpoints_of_reference_scripts_are_read() {
    for (name, key) in [("torchvision_script.pth", "model"), ("timm_script.pth", "state_dict")] {
        let file = open(name).unwrap();
        assert_eq!((file.unwrapped(), file.prefix()), (Some(key), ""), "{name}");
        check_small(&file);
    }
}

/// The names of a wrapped network are its own, in either format.
#[test]
fn what_wrappers_put_before_names_is_taken_off() {
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
        let bare = file.matching([("conv1.weight", shape), ("fc.weight", shape)]);
        assert!(bare.is_complete() && bare.unexpected.is_empty(), "{bare:?}");
        // A network whose layers are called so.
        let own = [format!("{prefix}conv1.weight"), format!("{prefix}fc.weight")];
        let whole = file.matching(own.iter().map(|name| (name.as_str(), shape)));
        assert!(whole.is_complete() && whole.unexpected.is_empty(), "{whole:?}");
        for name in &own {
            assert_eq!(file.read(file.get(name).unwrap()).unwrap(), values);
        }
    }
    // Not before every name: it is a layer's.
    for names in [["model.conv1.weight", "fc.weight"], ["module.", "module.fc.weight"]] {
        assert_eq!(written(&names).prefix(), "");
    }
}

#[test]
fn types_views_and_parameters_are_read() {
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
            "tensor scalar: it is of type int64, which is no weight; float64, float32, float16 and bfloat16 \
             are read"
        );
    }
}

#[test]
fn types_of_safetensors_are_read() {
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
    assert!(file.floats().all(|tensor| tensor.name != "eighth"));
}

#[test]
fn code_is_refused_by_name_and_not_run() {
    assert_eq!(
        message("malicious.pth"),
        "the file would run `posix.system` when Python opens it, which no state dict needs: refused, nothing \
         was executed; save only the tensors, torch.save(model.state_dict(), path)"
    );
    assert!(
        message("whole_model.pth").starts_with("the file would run `torch.nn.modules.container.Sequential`")
    );
}

#[test]
fn other_files_are_told_apart() {
    for (name, what) in [
        (
            "legacy.pth",
            "this is a PyTorch file in the format from before version 1.6; save it again with a current",
        ),
        ("torchscript.pt", "this is a TorchScript program; save only its tensors"),
        ("deflated.pth", "this is a compressed archive, which PyTorch does not write; pack its files"),
        ("plain_pickle.pkl", "this is a plain Python pickle; save the tensors with torch.save"),
        (
            "ambiguous.pth",
            "this is a PyTorch file with several state dicts (model, state_dict); save only the one",
        ),
        ("list.pth", "this is a PyTorch file with a list instead of a state dict; save a state dict"),
    ] {
        let message = message(name);
        assert!(message.starts_with(what), "{name}: {message}");
    }
    let bytes = |bytes: &[u8]| WeightsFile::from_bytes("f", bytes.to_vec()).unwrap_err().to_string();
    assert_eq!(bytes(b""), "f: this is an empty file; download or save it again");
    assert!(bytes(b"<!doctype html>").starts_with("f: this is a web page"));
    assert!(bytes(b"version https://git-lfs.github.com/spec/v1").starts_with("f: this is a Git LFS pointer"));
    assert!(
        bytes(b"no weights at all").starts_with("f: this is neither safetensors nor a PyTorch file; name a")
    );
    let zip = crate::common::archive(&[("word/document.xml", b"<xml/>"), ("mimetype", b"")]);
    assert!(bytes(&zip).starts_with("f: this is a zip archive of something else (it holds mimetype); name"));
    assert!(WeightsFile::open("/").unwrap_err().to_string().contains("this is a folder"));
    assert!(open("absent.pth").unwrap_err().to_string().contains("absent.pth: cannot open: "));
}

#[test]
fn a_big_endian_file_is_refused() {
    let file = crate::common::archive(&[("a/data.pkl", b"}."), ("a/byteorder", b"big")]);
    let error = WeightsFile::from_bytes("f", file).unwrap_err().to_string();
    assert!(error.starts_with("f: this is a PyTorch file of a big-endian machine; save it again"), "{error}");
}

#[test]
fn what_is_written_is_read_back() {
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
fn what_cannot_be_written_is_refused() {
    let refuse = |tensors: &[TensorRef<'_>]| {
        let mut bytes = Vec::new();
        let error = write_safetensors(&mut bytes, tensors, &BTreeMap::new()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(bytes.is_empty(), "nothing is written of what cannot be");
        error.to_string()
    };
    let one = TensorRef::f32("a", &[1], &[1.0]);
    assert_eq!(refuse(&[TensorRef::f32("a", &[2], &[1.0])]), "the tensor a has 1 values for the shape [2]");
    assert_eq!(refuse(&[one, one]), "the name a is taken already");
    assert_eq!(
        refuse(&[TensorRef::f32("__metadata__", &[1], &[1.0])]),
        "the name __metadata__ is taken already"
    );
}

#[test]
fn a_file_fits_a_network_with_another_head() {
    let file = open("nested.pth").unwrap();
    let wanted: Vec<(&str, &[usize])> = SMALL
        .iter()
        .map(|&(name, shape, _)| match name {
            "fc.weight" => (name, &[9, 3][..]),
            "fc.bias" => (name, &[9][..]),
            _ => (name, shape),
        })
        .collect();
    let matching = file.matching(wanted);
    assert_eq!(matching.loaded.len(), 5);
    assert_eq!(
        matching.mismatched.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(),
        ["fc.weight", "fc.bias"]
    );
    assert!(matching.missing.is_empty() && matching.unexpected.is_empty() && !matching.is_complete());
}
