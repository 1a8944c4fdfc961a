//! Hand-written pickles: supported, rejected and over the limits.

use super::*;

const DAMAGED: &str = "the file is damaged: ";

/// Checks the kind of the root of a pickle, or the beginning of its error message.
fn check(pickle: &[u8], expected: &str) {
    let found = match load(pickle) {
        Ok(objects) => objects.get(objects.root).describe().to_string(),
        Err(problem) => problem.to_string(),
    };
    assert!(found.starts_with(expected), "{found}\nis not\n{expected}");
}

#[test]
fn reads_plain_values() {
    check(b"\x80\x02N.", "None");
    check(b"\x80\x04\x95\0\0\0\0\0\0\0\0\x8c\x02ab.", "text");
    check(b"(K\x01K\x02t.", "a tuple");
    check(b"]q\0(K\x01K\x02e.", "a list");
    check(b"}X\x01\0\0\0aK\x01s.", "a dict");
    check(b"(X\x01\0\0\0aK\x01d.", "a dict");
    check(b"\x8f\x94(K\x01\x90.", "bytes, a set");
    check(b"c__builtin__\nset\n]\x85R.", "bytes, a set");
    check(b"ctorch\nSize\nK\x01\x85\x85R.", "a tuple");
    check(b"ccollections\nOrderedDict\n)R}b.", "a dict");
}

#[test]
fn reads_integers_exactly() {
    let int = |pickle: &[u8]| match load(pickle) {
        Ok(objects) => match objects.get(objects.root) {
            Object::Int(value) => Some(*value),
            _ => None,
        },
        Err(problem) => panic!("{problem}"),
    };
    assert_eq!(int(b"J\xff\xff\xff\xff."), Some(-1));
    assert_eq!(int(b"M\x34\x12."), Some(0x1234));
    assert_eq!(int(b"\x8a\0."), Some(0));
    assert_eq!(int(b"\x8a\x01\xff."), Some(-1));
    assert_eq!(int(b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), Some(i64::MAX));
    assert_eq!(int(b"\x8a\x09\0\0\0\0\0\0\0\0\x01."), None);
}

#[test]
fn rejects_globals_outside_the_closed_list_by_name() {
    check(b"cos\nsystem\nX\x01\0\0\0a\x85R.", "refused pickle global `os.system`");
    check(b"\x8c\x08builtins\x8c\x04eval\x93.", "refused pickle global `builtins.eval`");
    // Names that only share a prefix or suffix with the list, and the modules of Python 2.
    check(b"ctorch\nFloatStorage.__init__\n.", "refused pickle global `torch.FloatStorage.__init__`");
    check(b"ctorch.storage\nFloatStorage\n.", "refused pickle global `torch.storage.FloatStorage`");
    check(b"c__builtin__\ngetattr\n.", "refused pickle global `__builtin__.getattr`");
    // Control characters of a name are escaped.
    check(b"c\x1b[2J\nx\n.", "refused pickle global `\\u{1b}[2J.x`");
}

#[test]
fn rejects_other_instructions_that_create_objects() {
    let refused = "unsupported pickle: instruction 0x";
    for opcode in [b'i', b'o', b'P', b'I', b'L', b'F', b'S', b'V', 0x82, 0x83, 0x84, 0x96, 0x97, 0xff] {
        check(&[b'(', opcode, b'.'], &format!("{refused}{opcode:02x} at byte 1; save only the tensors"));
    }
}

/// Objects of plain classes are ignored, including their attributes; other classes are rejected.
#[test]
fn ignores_objects_of_plain_classes_only() {
    let plain = "a plain object";
    check(b"cargparse\nNamespace\n)\x81}X\x02\0\0\0lrG\0\0\0\0\0\0\0\0sb.", plain);
    check(b"cargparse\nNamespace\n)}\x92.", plain);
    // A NumPy scalar: its type, created and then set, and its bytes, as protocol 2 encodes them.
    let dtype = b"cnumpy\ndtype\nX\x02\0\0\0f8\x89\x88\x87R(K\x03X\x01\0\0\0<NNNtb".as_slice();
    let bytes = b"c_codecs\nencode\nX\x01\0\0\0aX\x06\0\0\0latin1\x86R".as_slice();
    for module in ["numpy.core.multiarray", "numpy._core.multiarray"] {
        check(&[b"c", module.as_bytes(), b"\nscalar\n", dtype, bytes, b"\x86R."].concat(), plain);
    }
    check(b"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85RX\x01\0\0\0aK\x01s.", plain);
    check(b"ccollections\ndeque\n]\x85R(K\x01K\x02e.", plain);
    check(b"ctorch\ndevice\nX\x03\0\0\0cpu\x85R.", plain);
    check(b"ctorch\nfloat16\n.", "a function");
    // Globals that can execute code are rejected at any position.
    check(b"ccollections\ndefaultdict\ncposix\nsystem\n\x85R.", "refused pickle global `posix.system`");
    check(b"cargparse\nArgumentParser\n)\x81.", "refused pickle global `argparse.ArgumentParser`");
    check(b"cnumpy\nload\n.", "refused pickle global `numpy.load`");
    check(b"ctorch\nload\n.", "refused pickle global `torch.load`");
    check(b"c_codecs\ndecode\n.", "refused pickle global `_codecs.decode`");
    check(
        b"ctorch\nFloatStorage\n)\x81.",
        "unsupported pickle: it creates an object of a function; save only the tensors",
    );
    check(b"K\x01)\x81.", "unsupported pickle: it creates an object of an integer");
    check(b"(\x81.", &format!("{DAMAGED}its pickle pops from an empty stack"));
}

#[test]
fn rejects_calls_with_unsupported_arguments() {
    check(
        b"ccollections\nOrderedDict\nK\x01\x85R.",
        "unsupported pickle: it calls OrderedDict with unsupported arguments",
    );
    check(
        b"ctorch\nFloatStorage\n)R.",
        "unsupported pickle: it calls Storage(F32) with unsupported arguments",
    );
    check(
        b"ctorch._utils\n_rebuild_parameter\nNNN\x87R.",
        "unsupported pickle: it calls RebuildParameter with",
    );
    check(b"K\x01)R.", &format!("{DAMAGED}its pickle calls a non-function"));
    check(b"]}b.", "unsupported pickle: it sets attributes of a list");
}

#[test]
fn rejects_malformed_pickles() {
    for (pickle, problem) in [
        (&b""[..], "truncated pickle"),
        (b".", "its pickle pops from an empty stack"),
        (b"K\x01(.", "its pickle pops from an empty stack"),
        (b"0.", "its pickle pops from an empty stack"),
        (b"t.", "its pickle pops a missing mark"),
        (b"h\x07.", "its pickle reads an unset memo entry"),
        (b"K\x01K\x01a.", "its pickle appends to a non-list"),
        (b"K\x01K\x01K\x01s.", "its pickle sets an item of a non-dict"),
        (b"}(K\x01u.", "its pickle has a key without a value"),
        (b"K\x01Q.", "its pickle refers to a non-storage"),
        (b"X\x01\0\0\0\xff.", "its pickle has text that is not UTF-8"),
        (b"X\xff\xff\xff\xffab.", "truncated pickle"),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffab.", "truncated pickle"),
        (b"\x80\x09.", "unsupported pickle protocol 9"),
        (b"cos", "truncated pickle"),
    ] {
        check(pickle, &format!("{DAMAGED}{problem}"));
    }
}

#[test]
fn deep_nesting_needs_no_recursion() {
    let mut pickle = vec![b')'];
    pickle.resize(1 << 19, 0x85);
    pickle.push(b'.');
    check(&pickle, "a tuple");
}

#[test]
fn reads_a_dict_that_contains_itself() {
    check(b"}q\0X\x01\0\0\0ah\0s.", "a dict");
}

#[test]
fn rejects_pickles_over_the_limits() {
    let limit = 1 << 20;
    let many = |start: &[u8], piece: &[u8]| [start, &piece.repeat(limit + 1)].concat();
    check(&many(b"", b"N0"), "more than 1048576 objects in the pickle");
    check(&many(b"", b"("), "more than 1048576 marks in the pickle");
    check(&many(b"Nq\0", b"h\0"), "more than 1048576 objects on the pickle's stack");
    check(&many(b"N", b"\x94"), "more than 1048576 objects in the pickle's memo");
}

#[test]
fn calls_do_not_copy_long_argument_tuples() {
    let mut pickle = b"(".to_vec();
    pickle.extend_from_slice(&b"N".repeat(1 << 19));
    pickle.extend_from_slice(b"tq\0");
    pickle.extend_from_slice(&b"c__builtin__\nset\nh\0R0".repeat(1 << 17));
    pickle.extend_from_slice(b"N.");
    check(&pickle, "None");
}
