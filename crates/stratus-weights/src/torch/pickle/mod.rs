//! A reader of the subset of Python's pickle that state dicts use.
//!
//! A pickle is a program for a machine with a stack and a memo, specified in CPython's `pickletools`:
//! <https://docs.python.org/3/library/pickletools.html>. Python's unpickler can call anything that can be
//! imported. This one has a closed list of globals, each a case of a match that builds plain data: nothing is
//! called. Other globals are rejected by name.
//!
//! Objects are in one vector and refer to each other by index, so that deep or cyclic pickles cause no
//! recursion. The number of objects, the stack and the memo are limited.

mod globals;
mod op;

use std::collections::HashMap;

use self::globals::Global;
use crate::Dtype;
use crate::error::{Parsed, Problem};

/// The maximum number of objects. A state dict needs about 25 per tensor.
const MAX_OBJECTS: usize = 1 << 20;
const MAX_STACK: usize = 1 << 20;
const MAX_MEMO: usize = 1 << 20;
/// The maximum number of dimensions of a tensor.
const MAX_RANK: usize = 16;
/// The maximum number of arguments of a call; `_rebuild_tensor_v2` has seven.
const MAX_ARGUMENTS: usize = 7;

/// The index of an object of a pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ObjectId(u32);

/// An object of a pickle. Text borrows from the pickle.
#[derive(Debug)]
pub(super) enum Object<'a> {
    None,
    Bool,
    Int(i64),
    Float,
    Text(&'a str),
    Tuple(Vec<ObjectId>),
    List(Vec<ObjectId>),
    Dict(Vec<(ObjectId, ObjectId)>),
    Global(Global),
    Storage(Storage<'a>),
    Tensor(TensorView<'a>),
    /// Bytes, a set, or an integer of more than 64 bits, whose content is not needed.
    Opaque,
    /// An object that training programs save besides weights, such as their arguments.
    Ignored,
}

impl Object<'_> {
    pub fn describe(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool => "a truth value",
            Self::Int(_) => "an integer",
            Self::Float => "a number",
            Self::Text(_) => "text",
            Self::Tuple(_) => "a tuple",
            Self::List(_) => "a list",
            Self::Dict(_) => "a dict",
            Self::Global(_) => "a function",
            Self::Storage(_) => "a storage",
            Self::Tensor(_) => "a single tensor",
            Self::Opaque => "bytes, a set or a large number",
            Self::Ignored => "a plain object",
        }
    }
}

/// A storage: a file of the archive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage<'a> {
    pub key: &'a str,
    pub dtype: Dtype,
    pub elements: u64,
}

/// A tensor: a view of a storage.
#[derive(Debug)]
pub(super) struct TensorView<'a> {
    pub storage: Storage<'a>,
    /// The position of the first element in the storage.
    pub offset: u64,
    pub shape: Vec<usize>,
    /// The strides in elements; `None` if the tensor is row-major and dense.
    pub strides: Option<Vec<u64>>,
}

/// All objects of a pickle.
pub(super) struct Objects<'a> {
    all: Vec<Object<'a>>,
    pub root: ObjectId,
}

impl<'a> Objects<'a> {
    pub fn get(&self, id: ObjectId) -> &Object<'a> {
        &self.all[id.0 as usize]
    }
}

/// Reads a pickle.
pub(super) fn load(bytes: &[u8]) -> Parsed<Objects<'_>> {
    let mut machine = Unpickler {
        bytes,
        at: 0,
        all: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    loop {
        if machine.step()? {
            let root = machine.pop()?;
            return Ok(Objects { all: machine.all, root });
        }
    }
}

struct Unpickler<'a> {
    bytes: &'a [u8],
    at: usize,
    all: Vec<Object<'a>>,
    stack: Vec<ObjectId>,
    /// The heights of the stack at the marks.
    marks: Vec<usize>,
    memo: HashMap<u32, ObjectId>,
}

impl<'a> Unpickler<'a> {
    /// Executes an instruction. Returns whether it was the last.
    fn step(&mut self) -> Parsed<bool> {
        let opcode = self.u8()?;
        match opcode {
            op::STOP => return Ok(true),
            op::PROTO => {
                let version = self.u8()?;
                if !(2..=5).contains(&version) {
                    return Err(Problem::damaged(format!("unsupported pickle protocol {version}")));
                }
            }
            op::FRAME => drop(self.take(8)?),
            op::MARK => {
                if self.marks.len() == MAX_STACK {
                    return Err(Problem::Limit { items: "marks in the pickle", limit: MAX_STACK });
                }
                self.marks.push(self.stack.len());
            }
            op::POP => drop(self.pop()?),
            op::POP_MARK => drop(self.pop_mark()?),
            op::NONE => self.push(Object::None)?,
            op::NEWTRUE | op::NEWFALSE => self.push(Object::Bool)?,
            op::BINFLOAT => {
                self.take(8)?;
                self.push(Object::Float)?;
            }
            op::BININT => {
                let value = i32::from_le_bytes(self.array()?);
                self.push(Object::Int(value.into()))?;
            }
            op::BININT1 => {
                let value = self.u8()?;
                self.push(Object::Int(value.into()))?;
            }
            op::BININT2 => {
                let value = u16::from_le_bytes(self.array()?);
                self.push(Object::Int(value.into()))?;
            }
            op::LONG1 => self.long()?,
            op::BINUNICODE => self.text(4)?,
            op::SHORT_BINUNICODE => self.text(1)?,
            op::BINUNICODE8 => self.text(8)?,
            op::SHORT_BINBYTES => self.opaque(1)?,
            op::BINBYTES => self.opaque(4)?,
            op::BINBYTES8 => self.opaque(8)?,
            op::EMPTY_TUPLE => self.push(Object::Tuple(Vec::new()))?,
            op::TUPLE1 => self.short_tuple(1)?,
            op::TUPLE2 => self.short_tuple(2)?,
            op::TUPLE3 => self.short_tuple(3)?,
            op::TUPLE => {
                let items = self.pop_mark()?;
                self.push(Object::Tuple(items))?;
            }
            op::EMPTY_LIST => self.push(Object::List(Vec::new()))?,
            op::LIST => {
                let items = self.pop_mark()?;
                self.push(Object::List(items))?;
            }
            op::APPEND => {
                let item = self.pop()?;
                self.append(&[item])?;
            }
            op::APPENDS => {
                let items = self.pop_mark()?;
                self.append(&items)?;
            }
            op::EMPTY_DICT => self.push(Object::Dict(Vec::new()))?,
            op::DICT => {
                let items = self.pop_mark()?;
                self.push(Object::Dict(Vec::new()))?;
                self.set_items(&items)?;
            }
            op::SETITEM => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set_items(&[key, value])?;
            }
            op::SETITEMS => {
                let items = self.pop_mark()?;
                self.set_items(&items)?;
            }
            op::EMPTY_SET => self.push(Object::Opaque)?,
            op::ADDITEMS => {
                self.pop_mark()?;
                let (Object::Opaque | Object::Ignored) = self.top()? else {
                    return Err(self.malformed("adds to a non-set"));
                };
            }
            op::FROZENSET => {
                self.pop_mark()?;
                self.push(Object::Opaque)?;
            }
            op::GLOBAL => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Object::Global(Global::resolve(module, name)?))?;
            }
            op::STACK_GLOBAL => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (&Object::Text(module), &Object::Text(name)) = (self.get(module), self.get(name)) else {
                    return Err(self.malformed("names a global by a non-string"));
                };
                self.push(Object::Global(Global::resolve(module, name)?))?;
            }
            op::REDUCE => self.reduce()?,
            op::NEWOBJ => self.new_object(1)?,
            op::NEWOBJ_EX => self.new_object(2)?,
            op::BUILD => self.build()?,
            op::BINPERSID => self.persistent()?,
            op::BINGET => {
                let key = self.u8()?;
                self.memo_get(key.into())?;
            }
            op::LONG_BINGET => {
                let key = u32::from_le_bytes(self.array()?);
                self.memo_get(key)?;
            }
            op::BINPUT => {
                let key = self.u8()?;
                self.memo_put(key.into())?;
            }
            op::LONG_BINPUT => {
                let key = u32::from_le_bytes(self.array()?);
                self.memo_put(key)?;
            }
            // The memo has at most MAX_MEMO entries.
            op::MEMOIZE => self.memo_put(self.memo.len() as u32)?,
            other => {
                let at = self.at - 1;
                return Err(Problem::UnsupportedPickle(format!("instruction 0x{other:02x} at byte {at}")));
            }
        }
        Ok(false)
    }

    fn take(&mut self, count: usize) -> Parsed<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..count).ok_or_else(|| Problem::damaged("truncated pickle"))?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Parsed<u8> {
        self.array().map(|[byte]| byte)
    }

    /// Reads bytes after a length of `width` bytes.
    fn length_prefixed(&mut self, width: usize) -> Parsed<&'a [u8]> {
        let length = self.take(width)?.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn text(&mut self, width: usize) -> Parsed<()> {
        // Python allows lone surrogates, which are not UTF-8 and in no tensor name.
        let text = str::from_utf8(self.length_prefixed(width)?)
            .map_err(|_| self.malformed("has text that is not UTF-8"))?;
        self.push(Object::Text(text))
    }

    fn opaque(&mut self, width: usize) -> Parsed<()> {
        self.length_prefixed(width)?;
        self.push(Object::Opaque)
    }

    fn line(&mut self) -> Parsed<&'a str> {
        let rest = &self.bytes[self.at..];
        let length =
            rest.iter().position(|&b| b == b'\n').ok_or_else(|| Problem::damaged("truncated pickle"))?;
        self.at += length + 1;
        str::from_utf8(&rest[..length]).map_err(|_| self.malformed("has a name that is not UTF-8"))
    }

    /// Reads a little-endian integer in two's complement.
    fn long(&mut self) -> Parsed<()> {
        let bytes = self.length_prefixed(1)?;
        let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
        let mut value = [if negative { 0xff } else { 0 }; 8];
        match value.get_mut(..bytes.len()) {
            Some(low) => {
                low.copy_from_slice(bytes);
                self.push(Object::Int(i64::from_le_bytes(value)))
            }
            None => self.push(Object::Opaque),
        }
    }

    fn push(&mut self, object: Object<'a>) -> Parsed<()> {
        if self.all.len() == MAX_OBJECTS {
            return Err(Problem::Limit { items: "objects in the pickle", limit: MAX_OBJECTS });
        }
        // The number is at most MAX_OBJECTS.
        let id = ObjectId(self.all.len() as u32);
        self.all.push(object);
        self.push_id(id)
    }

    fn push_id(&mut self, id: ObjectId) -> Parsed<()> {
        if self.stack.len() == MAX_STACK {
            return Err(Problem::Limit { items: "objects on the pickle's stack", limit: MAX_STACK });
        }
        self.stack.push(id);
        Ok(())
    }

    fn get(&self, id: ObjectId) -> &Object<'a> {
        &self.all[id.0 as usize]
    }

    fn pop(&mut self) -> Parsed<ObjectId> {
        // Objects below a mark are not accessible.
        if self.stack.len() <= self.marks.last().copied().unwrap_or(0) {
            return Err(self.malformed("pops from an empty stack"));
        }
        self.stack.pop().ok_or_else(|| self.malformed("pops from an empty stack"))
    }

    fn pop_mark(&mut self) -> Parsed<Vec<ObjectId>> {
        let mark = self.marks.pop().ok_or_else(|| self.malformed("pops a missing mark"))?;
        Ok(self.stack.split_off(mark))
    }

    /// The object on top of the stack.
    fn top(&mut self) -> Parsed<&mut Object<'a>> {
        let id = self.pop()?;
        self.stack.push(id);
        Ok(&mut self.all[id.0 as usize])
    }

    fn malformed(&self, problem: &str) -> Problem {
        Problem::damaged(format!("its pickle {problem} before byte {}", self.at))
    }

    fn memo_get(&mut self, key: u32) -> Parsed<()> {
        let id = *self.memo.get(&key).ok_or_else(|| self.malformed("reads an unset memo entry"))?;
        self.push_id(id)
    }

    fn memo_put(&mut self, key: u32) -> Parsed<()> {
        let id = self.pop()?;
        self.stack.push(id);
        if self.memo.len() == MAX_MEMO {
            return Err(Problem::Limit { items: "objects in the pickle's memo", limit: MAX_MEMO });
        }
        self.memo.insert(key, id);
        Ok(())
    }

    fn short_tuple(&mut self, count: usize) -> Parsed<()> {
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push(Object::Tuple(items))
    }

    fn append(&mut self, items: &[ObjectId]) -> Parsed<()> {
        match self.top()? {
            Object::List(list) => list.extend_from_slice(items),
            Object::Ignored => {}
            _ => return Err(self.malformed("appends to a non-list")),
        }
        Ok(())
    }

    fn set_items(&mut self, items: &[ObjectId]) -> Parsed<()> {
        let (pairs, []) = items.as_chunks::<2>() else {
            return Err(self.malformed("has a key without a value"));
        };
        match self.top()? {
            Object::Dict(dict) => dict.extend(pairs.iter().map(|&[key, value]| (key, value))),
            Object::Ignored => {}
            _ => return Err(self.malformed("sets an item of a non-dict")),
        }
        Ok(())
    }

    /// Sets the attributes of an object, which are ignored: in state dicts, they are the versions of modules.
    fn build(&mut self) -> Parsed<()> {
        self.pop()?;
        match self.top()? {
            Object::Dict(_) | Object::Tensor(_) | Object::Ignored => Ok(()),
            other => {
                let kind = other.describe();
                Err(Problem::UnsupportedPickle(format!("it sets attributes of {kind}")))
            }
        }
    }

    /// Evaluates a call of a function of the closed list.
    fn reduce(&mut self) -> Parsed<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let (&Object::Global(function), Object::Tuple(arguments)) = (self.get(function), self.get(arguments))
        else {
            return Err(self.malformed("calls a non-function"));
        };
        // Limited before copying: a pickle can repeat calls with the same long tuple.
        let arguments: Vec<ObjectId> = arguments.iter().take(MAX_ARGUMENTS + 1).copied().collect();
        match (function, arguments.as_slice()) {
            (Global::OrderedDict, []) => self.push(Object::Dict(Vec::new())),
            // The arguments are not needed.
            (Global::Ignored, _) => self.push(Object::Ignored),
            (Global::Set, _) => self.push(Object::Opaque),
            (Global::Size, &[dims]) if matches!(self.get(dims), Object::Tuple(_)) => self.push_id(dims),
            (Global::RebuildTensor, &[storage, offset, shape, strides, ..]) if arguments.len() <= 7 => {
                let view = self.view(storage, offset, shape, strides)?;
                self.push(Object::Tensor(view))
            }
            (Global::RebuildParameter, &[data, _, _]) if matches!(self.get(data), Object::Tensor(_)) => {
                self.push_id(data)
            }
            _ => Err(Problem::UnsupportedPickle(format!("it calls {function:?} with unsupported arguments"))),
        }
    }

    /// Creates an object of a class of the closed list, ignoring `arguments` arguments. Nothing is called.
    fn new_object(&mut self, arguments: usize) -> Parsed<()> {
        for _ in 0..arguments {
            self.pop()?;
        }
        let class = self.pop()?;
        match self.get(class) {
            Object::Global(Global::Ignored) => self.push(Object::Ignored),
            other => {
                let kind = other.describe();
                Err(Problem::UnsupportedPickle(format!("it creates an object of {kind}")))
            }
        }
    }

    /// Reads the storage of a persistent ID: ('storage', type, key, device, elements).
    fn persistent(&mut self) -> Parsed<()> {
        let id = self.pop()?;
        let storage = match self.get(id) {
            Object::Tuple(parts) => match parts.as_slice() {
                &[kind, dtype, key, _device, elements] => {
                    match (self.get(kind), self.get(dtype), self.get(key), self.get(elements)) {
                        (
                            Object::Text("storage"),
                            &Object::Global(Global::Storage(dtype)),
                            &Object::Text(key),
                            &Object::Int(elements),
                        ) => u64::try_from(elements).ok().map(|elements| Storage { key, dtype, elements }),
                        _ => None,
                    }
                }
                _ => None,
            },
            _ => None,
        };
        let storage = storage.ok_or_else(|| self.malformed("refers to a non-storage"))?;
        self.push(Object::Storage(storage))
    }

    fn view(
        &self,
        storage: ObjectId,
        offset: ObjectId,
        shape: ObjectId,
        strides: ObjectId,
    ) -> Parsed<TensorView<'a>> {
        let (Object::Storage(storage), &Object::Int(offset)) = (self.get(storage), self.get(offset)) else {
            return Err(self.malformed("rebuilds a tensor from a non-storage"));
        };
        let (shape, strides) = (self.non_negative_ints(shape)?, self.non_negative_ints(strides)?);
        let invalid = || self.malformed(&format!("has a tensor of shape {shape:?} outside its storage"));
        let offset = u64::try_from(offset).map_err(|_| invalid())?;
        let count =
            shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim)).ok_or_else(invalid)?;
        if shape.len() != strides.len() || count > storage.elements {
            // A tensor with more elements than its storage is expanded, which no parameter is.
            return Err(invalid());
        }
        let last = shape.iter().zip(&strides).try_fold(offset, |last, (&dim, stride)| {
            dim.saturating_sub(1).checked_mul(*stride).and_then(|step| last.checked_add(step))
        });
        // An empty tensor may start at the end of the storage.
        let inside =
            last.is_some_and(
                |last| if count == 0 { offset <= storage.elements } else { last < storage.elements },
            );
        if !inside {
            return Err(invalid());
        }
        let dims = shape
            .iter()
            .map(|&n| usize::try_from(n))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| invalid())?;
        let mut expected = 1u64;
        let dense = shape.iter().zip(&strides).rev().all(|(&dim, &stride)| {
            let fits = dim == 1 || stride == expected;
            // Wrapping, since an empty tensor may have any dimensions.
            expected = dim.wrapping_mul(expected);
            fits
        });
        let strides = (!dense && count > 0).then_some(strides);
        Ok(TensorView { storage: *storage, offset, shape: dims, strides })
    }

    /// Reads a tuple of non-negative integers, which is a shape or strides.
    fn non_negative_ints(&self, id: ObjectId) -> Parsed<Vec<u64>> {
        let Object::Tuple(items) = self.get(id) else {
            return Err(self.malformed("has a shape that is not a tuple"));
        };
        if items.len() > MAX_RANK {
            return Err(Problem::Limit { items: "dimensions of a tensor", limit: MAX_RANK });
        }
        let number = |&id: &ObjectId| match self.get(id) {
            &Object::Int(value) => u64::try_from(value).ok(),
            _ => None,
        };
        items
            .iter()
            .map(number)
            .collect::<Option<_>>()
            .ok_or_else(|| self.malformed("has a shape with an invalid dimension"))
    }
}

#[cfg(test)]
mod tests;
