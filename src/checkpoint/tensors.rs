//! safetensors files of named f32 arrays: streamed out, checked when opened, read array by array.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, View};

use super::Layout;
use crate::error::{Error, Result};

/// An array in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedArray {
    pub name: String,
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
}

/// Names listed in an error before the rest is only counted.
const LISTED: usize = 5;
/// The format's own limit for its header.
const MAX_HEADER: u64 = 100_000_000;
/// Bytes read at a time, whole elements.
const BLOCK: usize = 1 << 20;

/// Writes the arrays under the given names; one at a time is converted to bytes.
pub fn write<'a>(path: &Path, arrays: impl IntoIterator<Item = (String, &'a NamedArray)>) -> Result<()> {
    let arrays = arrays.into_iter().map(|(name, array)| (name, F32View(array)));
    // Transformers and PEFT read only files that say so.
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(arrays, Some(format), path)
        .map_err(|e| Error::server(format!("cannot write {}: {e}", path.display())))
}

struct F32View<'a>(&'a NamedArray);

impl View for F32View<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.0.data.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    fn data_len(&self) -> usize {
        self.0.data.len() * size_of::<f32>()
    }
}

/// An open file whose header describes it completely.
pub struct Reader {
    path: PathBuf,
    file: File,
    /// Where the data begins, in bytes.
    data: u64,
    tensors: HashMap<String, TensorInfo>,
}

impl Reader {
    /// Reads the header and compares it with the file's length.
    ///
    /// # Errors
    /// Server errors that name the file: it is missing, cut short or damaged.
    pub fn open(path: &Path) -> Result<Self> {
        let damaged = |why: String| Error::server(format!("{} is damaged: {why}", path.display()));
        let mut file = File::open(path).map_err(|e| Error::server(format!("cannot open {}: {e}", path.display())))?;
        let length = file.metadata()?.len();
        let mut size = [0; 8];
        file.read_exact(&mut size).map_err(|e| damaged(e.to_string()))?;
        let size = u64::from_le_bytes(size);
        if size > MAX_HEADER || size + 8 > length {
            return Err(damaged(format!("a header of {size} bytes in a file of {length}")));
        }
        let mut header = vec![0; size as usize];
        file.read_exact(&mut header).map_err(|e| damaged(e.to_string()))?;
        let header: Metadata = serde_json::from_slice(&header).map_err(|e| damaged(e.to_string()))?;
        let tensors: HashMap<_, _> = header.tensors().into_iter().map(|(name, info)| (name, info.clone())).collect();
        let end = tensors.values().map(|t| t.data_offsets.1).max().unwrap_or(0);
        let described = (end as u64).saturating_add(8 + size);
        if described != length {
            return Err(damaged(format!("the header describes {described} bytes, there are {length}")));
        }
        Ok(Self { path: path.into(), file, data: 8 + size, tensors })
    }

    /// What the file holds: name, shape and type of each array, by name.
    pub fn arrays(&self) -> Vec<(&str, &TensorInfo)> {
        let mut all: Vec<_> = self.tensors.iter().map(|(name, info)| (name.as_str(), info)).collect();
        all.sort_by_key(|(name, _)| *name);
        all
    }

    /// An array's values; half precision is widened exactly. Other types than F32, BF16 and F16 have no values here.
    pub fn read(&mut self, key: &str) -> Result<Vec<f32>> {
        let info = &self.tensors[key];
        let width = match info.dtype {
            Dtype::F32 => 4,
            Dtype::BF16 | Dtype::F16 => 2,
            other => return Err(Error::user(format!("{key} has dtype {other}; F32, BF16 and F16 can be read"))),
        };
        let failed = |e: std::io::Error| Error::server(format!("cannot read {}: {e}", self.path.display()));
        self.file.seek(SeekFrom::Start(self.data + info.data_offsets.0 as u64)).map_err(failed)?;
        let mut left = info.data_offsets.1 - info.data_offsets.0;
        let mut values = Vec::with_capacity(left / width);
        let mut block = vec![0; left.min(BLOCK)];
        while left > 0 {
            let block = &mut block[..left.min(BLOCK)];
            self.file.read_exact(block).map_err(failed)?;
            match info.dtype {
                Dtype::BF16 => values.extend(halves(block).map(|b| half::bf16::from_le_bytes(b).to_f32())),
                Dtype::F16 => values.extend(halves(block).map(|b| half::f16::from_le_bytes(b).to_f32())),
                _ => values.extend(block.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
            }
            left -= block.len();
        }
        Ok(values)
    }
}

fn halves(block: &[u8]) -> impl Iterator<Item = [u8; 2]> {
    block.chunks_exact(2).map(|b| [b[0], b[1]])
}

/// Reads exactly the arrays of `layout`, in its order, from files that together must hold nothing else. `key` makes a
/// file's name of an array's.
///
/// # Errors
/// User errors that list, up to a few names, what is missing, superfluous or of another shape or dtype.
pub fn read_all(files: &mut [Reader], layout: &Layout, key: impl Fn(&str) -> String) -> Result<Vec<NamedArray>> {
    let keys: Vec<String> = layout.iter().map(|(name, _)| key(name)).collect();
    let mut problems = Vec::new();
    let mut places = Vec::with_capacity(keys.len());
    for (key, (_, shape)) in keys.iter().zip(layout) {
        match files.iter().enumerate().find_map(|(i, f)| Some((i, f.tensors.get(key)?))) {
            None => problems.push(format!("{key} is missing")),
            Some((_, t)) if t.shape != *shape => {
                problems.push(format!("{key} has shape {:?}, the model needs {shape:?}", t.shape));
            }
            Some((_, t)) if t.dtype != Dtype::F32 => problems.push(format!("{key} has dtype {}, not F32", t.dtype)),
            Some((i, _)) => places.push(i),
        }
    }
    let wanted: HashSet<&String> = keys.iter().collect();
    let mut others: Vec<_> = files.iter().flat_map(|f| f.tensors.keys()).filter(|k| !wanted.contains(k)).collect();
    others.sort();
    problems.extend(others.into_iter().map(|k| format!("{k} has no place in the model")));
    if !problems.is_empty() {
        let more = problems.len().saturating_sub(LISTED);
        problems.truncate(LISTED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        return Err(Error::user(format!("the checkpoint does not fit: {}{more}", problems.join("; "))));
    }
    let mut arrays = Vec::with_capacity(layout.len());
    for ((name, shape), (key, place)) in layout.iter().zip(keys.iter().zip(places)) {
        arrays.push(NamedArray { name: name.clone(), shape: shape.clone(), data: files[place].read(key)? });
    }
    Ok(arrays)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{array, layout};
    use super::*;

    #[test]
    fn the_file_is_readable_by_the_formats_own_crate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let a = array("a", &[2, 3], 0.5);
        write(&path, [("k".to_owned(), &a)]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let k = file.tensor("k").unwrap();
        assert_eq!((k.dtype(), k.shape()), (Dtype::F32, &[2, 3][..]));
        assert_eq!(&k.data()[..4], 0.5f32.to_le_bytes());
        let (_, meta) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(meta.metadata().as_ref().unwrap()["format"], "pt");
    }

    #[test]
    fn all_that_does_not_fit_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let (a, b, c) = (array("a", &[2, 3], 0.0), array("b", &[4], 1.0), array("c", &[1], 2.0));
        write(&path, [&a, &b].map(|x| (x.name.clone(), x))).unwrap();
        let mut want = layout(&[a, c]);
        want[0].1 = vec![3, 2];
        let e = read_all(&mut [Reader::open(&path).unwrap()], &want, str::to_owned).unwrap_err();
        assert_eq!(
            e.message,
            "the checkpoint does not fit: a has shape [2, 3], the model needs [3, 2]; c is missing; \
             b has no place in the model"
        );
    }

    #[test]
    fn damaged_files_do_not_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        write(&path, [("a".to_owned(), &array("a", &[2, 3], 0.0))]).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let mut longer = whole.clone();
        longer.push(0);
        let mut huge = whole.clone();
        huge[..8].fill(0xff);
        // Eight arrays of nearly 2^61 bytes each: with the header more than a u64 counts.
        let most = (1u64 << 61) - 1;
        let array = |i: u64| {
            let (from, to) = (i * most, (i + 1) * most);
            format!(r#""{i}":{{"dtype":"U8","shape":[{most}],"data_offsets":[{from},{to}]}}"#)
        };
        let header = format!("{{{}}}", (0..8).map(array).collect::<Vec<_>>().join(","));
        let endless = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        for bytes in [&whole[..whole.len() - 1], &whole[..20], &whole[..4], &[], &longer[..], &huge[..], &endless[..]] {
            std::fs::write(&path, bytes).unwrap();
            let e = Reader::open(&path).err().expect("a damaged file must be refused");
            assert!(e.message.contains("x.safetensors is damaged"), "{e}");
        }
    }
}
