//! Pickles written by hand: what is refused and what is limited.

use super::*;

const DAMAGED: &str = "the file is damaged: its pickle ";

/// What a pickle gives: the kind of its root, or the message of its error.
fn check(pickle: &[u8], expected: &str) {
    let found = match load(pickle) {
        Ok(objects) => objects.get(objects.root).describe().to_string(),
        Err(problem) => problem.to_string(),
    };
    assert!(found.starts_with(expected), "{found}\nis not\n{expected}");
}

#[test]
fn plain_values_are_read() {
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
fn integers_keep_their_value() {
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
fn a_global_beyond_the_list_is_refused_by_name() {
    check(b"cos\nsystem\nX\x01\0\0\0a\x85R.", "the file would run `os.system` when Python opens it");
    check(b"\x8c\x08builtins\x8c\x04eval\x93.", "the file would run `builtins.eval` when Python opens it");
    // Names that only begin or end like one on the list, and the modules that Python 2 had.
    check(b"ctorch\nFloatStorage.__init__\n.", "the file would run `torch.FloatStorage.__init__`");
    check(b"ctorch.storage\nFloatStorage\n.", "the file would run `torch.storage.FloatStorage`");
    check(b"c__builtin__\ngetattr\n.", "the file would run `__builtin__.getattr`");
    // A name cannot write to the terminal.
    check(b"c\x1b[2J\nx\n.", "the file would run `\\u{1b}[2J.x`");
}

#[test]
fn instructions_that_make_objects_are_refused() {
    let refused = "the pickle has the instruction 0x";
    for opcode in [b'i', b'o', b'P', b'I', b'L', b'F', b'S', b'V', 0x82, 0x83, 0x84, 0x96, 0x97, 0xff] {
        check(&[b'(', opcode, b'.'], &format!("{refused}{opcode:02x} at byte 1, which no state dict needs"));
    }
}

/// Objects of plain classes are passed over, with all that is set in them; of other classes there are none.
#[test]
fn plain_objects_are_passed_over() {
    let plain = "a plain object";
    check(b"cargparse\nNamespace\n)\x81}X\x02\0\0\0lrG\0\0\0\0\0\0\0\0sb.", plain);
    check(b"cargparse\nNamespace\n)}\x92.", plain);
    // A number of NumPy's: its type, made and then set, and its bytes, as protocol 2 writes them.
    let dtype = b"cnumpy\ndtype\nX\x02\0\0\0f8\x89\x88\x87R(K\x03X\x01\0\0\0<NNNtb".as_slice();
    let bytes = b"c_codecs\nencode\nX\x01\0\0\0aX\x06\0\0\0latin1\x86R".as_slice();
    for module in ["numpy.core.multiarray", "numpy._core.multiarray"] {
        check(&[b"c", module.as_bytes(), b"\nscalar\n", dtype, bytes, b"\x86R."].concat(), plain);
    }
    check(b"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85RX\x01\0\0\0aK\x01s.", plain);
    check(b"ccollections\ndeque\n]\x85R(K\x01K\x02e.", plain);
    check(b"ctorch\ndevice\nX\x03\0\0\0cpu\x85R.", plain);
    check(b"ctorch\nfloat16\n.", "a function");
    // What could run something has no name here, wherever it stands.
    check(b"ccollections\ndefaultdict\ncposix\nsystem\n\x85R.", "the file would run `posix.system`");
    check(b"cargparse\nArgumentParser\n)\x81.", "the file would run `argparse.ArgumentParser`");
    check(b"cnumpy\nload\n.", "the file would run `numpy.load`");
    check(b"ctorch\nload\n.", "the file would run `torch.load`");
    check(b"c_codecs\ndecode\n.", "the file would run `_codecs.decode`");
    check(
        b"ctorch\nFloatStorage\n)\x81.",
        "the pickle makes an object of a function, which no state dict needs",
    );
    check(b"K\x01)\x81.", "the pickle makes an object of an integer");
    check(b"(\x81.", &format!("{DAMAGED}takes from an empty stack"));
}

#[test]
fn calls_of_other_kinds_are_refused() {
    check(
        b"ccollections\nOrderedDict\nK\x01\x85R.",
        "the pickle calls OrderedDict with arguments of other kinds",
    );
    check(b"ctorch\nFloatStorage\n)R.", "the pickle calls Storage(F32) with arguments of other kinds");
    check(b"ctorch._utils\n_rebuild_parameter\nNNN\x87R.", "the pickle calls RebuildParameter with");
    check(b"K\x01)R.", &format!("{DAMAGED}calls what is no function"));
    check(b"]}b.", "the pickle sets attributes of a list");
}

#[test]
fn nonsense_is_damage() {
    for (pickle, what) in [
        (&b""[..], "is cut short"),
        (b".", "takes from an empty stack"),
        (b"K\x01(.", "takes from an empty stack"),
        (b"0.", "takes from an empty stack"),
        (b"t.", "looks for a mark that is not there"),
        (b"h\x07.", "recalls what it has not kept"),
        (b"K\x01K\x01a.", "appends to what is no list"),
        (b"K\x01K\x01K\x01s.", "sets an item of what is no dict"),
        (b"}(K\x01u.", "has a key without a value"),
        (b"K\x01Q.", "refers to something else than a storage"),
        (b"X\x01\0\0\0\xff.", "has text that is no UTF-8"),
        (b"X\xff\xff\xff\xffab.", "is cut short"),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffab.", "is cut short"),
        (b"\x80\x09.", "is of protocol 9"),
        (b"cos", "is cut short"),
    ] {
        check(pickle, &format!("{DAMAGED}{what}"));
    }
}

#[test]
fn depth_costs_nothing() {
    let mut pickle = vec![b')'];
    pickle.resize(1 << 19, 0x85);
    pickle.push(b'.');
    check(&pickle, "a tuple");
}

#[test]
fn a_dict_may_contain_itself() {
    check(b"}q\0X\x01\0\0\0ah\0s.", "a dict");
}

#[test]
fn sizes_are_limited() {
    let limit = 1 << 20;
    let many = |start: &[u8], piece: &[u8]| [start, &piece.repeat(limit + 1)].concat();
    check(&many(b"", b"N0"), "there are more than 1048576 objects in the pickle");
    check(&many(b"", b"("), "there are more than 1048576 marks in the pickle");
    check(&many(b"Nq\0", b"h\0"), "there are more than 1048576 objects on the pickle's stack");
    check(&many(b"N", b"\x94"), "there are more than 1048576 objects kept in the pickle's memo");
}

#[test]
fn a_long_tuple_of_arguments_is_not_copied_at_each_call() {
    let mut pickle = b"(".to_vec();
    pickle.extend_from_slice(&b"N".repeat(1 << 19));
    pickle.extend_from_slice(b"tq\0");
    pickle.extend_from_slice(&b"c__builtin__\nset\nh\0R0".repeat(1 << 17));
    pickle.extend_from_slice(b"N.");
    check(&pickle, "None");
}
