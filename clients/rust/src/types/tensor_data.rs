//! A tensor in JSON: dense or CSR, int64 or float32 (protocol §8.2).

use serde::{Deserialize, Serialize};
use serde_json::Number;

/// The values decide the `dtype`. For CSR, `values` holds the stored entries only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "TensorDataJson", into = "TensorDataJson")]
pub struct TensorData {
    pub values: TensorValues,
    /// `None` = 1-D of `values.len()`.
    pub shape: Option<Vec<i64>>,
    pub csr: Option<CsrIndices>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum TensorValues {
    Int64(Vec<i64>),
    Float32(Vec<f32>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum TensorDtype {
    Int64,
    Float32,
}

/// Row pointers (rows + 1) and the column of each stored value.
#[derive(Clone, Debug, PartialEq)]
pub struct CsrIndices {
    pub crow: Vec<i64>,
    pub col: Vec<i64>,
}

/// A tensor written out in full, row-major. `values.len()` equals the product of `shape`.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseTensor {
    pub values: TensorValues,
    pub shape: Vec<usize>,
}

impl TensorValues {
    pub fn len(&self) -> usize {
        match self {
            Self::Int64(v) => v.len(),
            Self::Float32(v) => v.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn dtype(&self) -> TensorDtype {
        match self {
            Self::Int64(_) => TensorDtype::Int64,
            Self::Float32(_) => TensorDtype::Float32,
        }
    }

    /// Whole numbers as they are; a float with a fraction, or none at all, is an error that names its index.
    pub fn into_i64(self) -> Result<Vec<i64>, String> {
        match self {
            Self::Int64(v) => Ok(v),
            Self::Float32(v) => v.into_iter().enumerate().map(|(i, x)| whole(x.into(), i)).collect(),
        }
    }

    pub fn into_f32(self) -> Vec<f32> {
        match self {
            Self::Int64(v) => v.into_iter().map(|x| x as f32).collect(),
            Self::Float32(v) => v,
        }
    }
}

impl TensorData {
    pub fn from_i64(values: impl IntoIterator<Item = i64>) -> Self {
        Self::one_dimensional(TensorValues::Int64(values.into_iter().collect()))
    }

    pub fn from_f32(values: impl IntoIterator<Item = f32>) -> Self {
        Self::one_dimensional(TensorValues::Float32(values.into_iter().collect()))
    }

    fn one_dimensional(values: TensorValues) -> Self {
        Self { shape: Some(vec![values.len() as i64]), values, csr: None }
    }

    pub fn with_shape(mut self, shape: impl IntoIterator<Item = i64>) -> Self {
        self.shape = Some(shape.into_iter().collect());
        self
    }

    pub fn dtype(&self) -> TensorDtype {
        self.values.dtype()
    }

    /// The dense tensor, absent CSR cells filled with `pad`. Never allocates more than `max_elements`.
    ///
    /// Errors: a shape that is negative, too large or disagrees with the number of values; broken CSR indices, among
    /// them a column that a row names twice. In what order a row names its columns does not matter.
    pub fn to_dense(&self, pad: i64, max_elements: usize) -> Result<DenseTensor, String> {
        let shape = match &self.shape {
            Some(s) => s
                .iter()
                .map(|&n| usize::try_from(n).map_err(|_| format!("shape {s:?} has a negative size")))
                .collect::<Result<Vec<_>, _>>()?,
            None if self.csr.is_some() => return Err("a sparse tensor needs a shape".into()),
            None => vec![self.values.len()],
        };
        let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|&n| n <= max_elements);
        let count = count.ok_or_else(|| format!("shape {shape:?} has more than {max_elements} elements"))?;
        let Some(csr) = &self.csr else {
            if count != self.values.len() {
                return Err(format!("shape {shape:?} needs {count} values, got {}", self.values.len()));
            }
            return Ok(DenseTensor { values: self.values.clone(), shape });
        };
        let [rows, cols] = shape[..] else {
            return Err(format!("a sparse tensor has two dimensions, not shape {shape:?}"));
        };
        let cells = csr.cells(rows, cols, self.values.len())?;
        let values = match &self.values {
            TensorValues::Int64(v) => TensorValues::Int64(scatter(v, &cells, count, pad)),
            TensorValues::Float32(v) => TensorValues::Float32(scatter(v, &cells, count, pad as f32)),
        };
        Ok(DenseTensor { values, shape })
    }
}

impl CsrIndices {
    /// The flat position of each stored value in a (rows, cols) matrix.
    fn cells(&self, rows: usize, cols: usize, stored: usize) -> Result<Vec<usize>, String> {
        let Self { crow, col } = self;
        if crow.len() != rows + 1 || col.len() != stored {
            return Err(format!(
                "CSR indices: {} row pointers for {rows} rows, {} columns for {stored} values",
                crow.len(),
                col.len()
            ));
        }
        let ascending = crow.windows(2).all(|w| w[0] <= w[1]);
        if !ascending || crow[0] != 0 || crow[rows] != stored as i64 {
            return Err(format!("CSR row pointers must rise from 0 to {stored}"));
        }
        let mut cells = Vec::with_capacity(stored);
        for row in 0..rows {
            for &c in &col[crow[row] as usize..crow[row + 1] as usize] {
                let c = usize::try_from(c).ok().filter(|&c| c < cols);
                let c = c.ok_or_else(|| format!("CSR column out of range in row {row}: there are {cols} columns"))?;
                cells.push(row * cols + c);
            }
        }
        match repeated(&cells) {
            Some(cell) => Err(format!("CSR column {} stands twice in row {}", cell % cols, cell / cols)),
            None => Ok(cells),
        }
    }
}

/// The lowest number that stands there more than once.
fn repeated(numbers: &[usize]) -> Option<usize> {
    if numbers.is_sorted_by(|a, b| a < b) {
        return None;
    }
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).find(|w| w[0] == w[1]).map(|w| w[0])
}

fn scatter<T: Copy>(stored: &[T], cells: &[usize], count: usize, pad: T) -> Vec<T> {
    let mut dense = vec![pad; count];
    for (&cell, &value) in cells.iter().zip(stored) {
        dense[cell] = value;
    }
    dense
}

fn whole(x: f64, index: usize) -> Result<i64, String> {
    // 2^53: beyond it a float no longer names one integer.
    if x.fract() == 0.0 && x.abs() <= 9_007_199_254_740_992.0 {
        Ok(x as i64)
    } else {
        Err(format!("value {x} at index {index} is not an integer"))
    }
}

/// The JSON layout of [`TensorData`]; public for the OpenAPI schemas alone.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = TensorData, description = "A tensor, dense or (with both index lists) CSR."))]
pub struct TensorDataJson {
    /// Row-major; for CSR the stored values only.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<f64>))]
    data: Vec<Number>,
    dtype: TensorDtype,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shape: Option<Vec<i64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sparse_crow_indices: Option<Vec<i64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sparse_col_indices: Option<Vec<i64>>,
}

impl TryFrom<TensorDataJson> for TensorData {
    type Error = String;

    fn try_from(json: TensorDataJson) -> Result<Self, String> {
        let float = |n: &Number| n.as_f64().expect("without arbitrary precision a JSON number is an f64 at worst");
        let values = match json.dtype {
            TensorDtype::Float32 => TensorValues::Float32(json.data.iter().map(|n| float(n) as f32).collect()),
            TensorDtype::Int64 => TensorValues::Int64(
                json.data
                    .iter()
                    .enumerate()
                    .map(|(i, n)| n.as_i64().map_or_else(|| whole(float(n), i), Ok))
                    .collect::<Result<_, _>>()?,
            ),
        };
        let csr = match (json.sparse_crow_indices, json.sparse_col_indices) {
            (None, None) => None,
            (Some(crow), Some(col)) => Some(CsrIndices { crow, col }),
            _ => return Err("sparse_crow_indices and sparse_col_indices come together".into()),
        };
        Ok(Self { values, shape: json.shape, csr })
    }
}

impl From<TensorData> for TensorDataJson {
    fn from(t: TensorData) -> Self {
        let dtype = t.dtype();
        let data = match t.values {
            TensorValues::Int64(v) => v.into_iter().map(Number::from).collect(),
            // JSON has neither NaN nor infinity: they travel only by protobuf. Here NaN becomes 0, an infinity the largest
            // number of its sign.
            TensorValues::Float32(v) => v
                .into_iter()
                .map(|x| Number::from_f64(x.clamp(f32::MIN, f32::MAX).into()).unwrap_or_else(|| Number::from(0)))
                .collect(),
        };
        let (sparse_crow_indices, sparse_col_indices) = t.csr.map(|c| (c.crow, c.col)).unzip();
        Self { data, dtype, shape: t.shape, sparse_crow_indices, sparse_col_indices }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<TensorData, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn the_dtype_decides_not_the_literal() {
        assert_eq!(
            parse(r#"{"data": [1, 2], "dtype": "float32"}"#).unwrap().values,
            TensorValues::Float32(vec![1.0, 2.0])
        );
        assert_eq!(
            parse(r#"{"data": [1.0, 2], "dtype": "int64", "shape": null}"#).unwrap().values,
            TensorValues::Int64(vec![1, 2])
        );
        assert!(parse(r#"{"data": [1.5], "dtype": "int64"}"#).is_err());
        assert!(parse(r#"{"data": [1], "dtype": "int8"}"#).is_err());
    }

    #[test]
    fn csr_is_filled_with_the_pad() {
        let t = parse(r#"{"data": [7, 8], "dtype": "int64", "shape": [2, 3], "sparse_crow_indices": [0, 1, 2], "sparse_col_indices": [2, 0]}"#).unwrap();
        let dense = t.to_dense(-1, 100).unwrap();
        assert_eq!(dense.values, TensorValues::Int64(vec![-1, -1, 7, 8, -1, -1]));
        assert_eq!(dense.shape, [2, 3]);
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let t = TensorData::from_f32([1.0, 2.0, 3.0, 4.0]);
        for shape in [vec![5], vec![-2], vec![1 << 40], vec![i64::MAX, i64::MAX], vec![2, 3]] {
            assert!(t.clone().with_shape(shape.clone()).to_dense(0, 1000).is_err(), "{shape:?}");
        }
        assert_eq!(t.with_shape([2, 2]).to_dense(0, 1000).unwrap().shape, [2, 2]);
    }

    #[test]
    fn broken_csr_is_refused() {
        let make = |crow: &[i64], col: &[i64]| TensorData {
            values: TensorValues::Int64(vec![5, 6]),
            shape: Some(vec![2, 2]),
            csr: Some(CsrIndices { crow: crow.to_vec(), col: col.to_vec() }),
        };
        assert!(make(&[0, 1, 2], &[0, 1]).to_dense(0, 4).is_ok());
        for (crow, col) in [
            (&[0, 3, 2][..], &[0, 1][..]),
            (&[0, 1], &[0, 1]),
            (&[0, 1, 2], &[0, 2]),
            (&[0, 1, 2], &[0, -1]),
            (&[-1, 1, 2], &[0, 1]),
            (&[0, 1, 3], &[0, 1]),
        ] {
            assert!(make(crow, col).to_dense(0, 4).is_err(), "{crow:?} {col:?}");
        }
    }

    #[test]
    fn csr_columns_come_in_any_order_but_once() {
        let make = |values: &[i64], crow: &[i64], col: &[i64]| TensorData {
            values: TensorValues::Int64(values.to_vec()),
            shape: Some(vec![2, 3]),
            csr: Some(CsrIndices { crow: crow.to_vec(), col: col.to_vec() }),
        };
        let any_order = make(&[5, 6, 7, 8], &[0, 3, 4], &[2, 0, 1, 2]).to_dense(-1, 6).unwrap();
        assert_eq!(any_order.values, TensorValues::Int64(vec![6, 7, 5, -1, -1, 8]));
        let twice = make(&[5, 6, 7, 8], &[0, 1, 4], &[1, 2, 0, 2]).to_dense(-1, 6);
        assert_eq!(twice.unwrap_err(), "CSR column 2 stands twice in row 1");
        assert!(make(&[5, 6], &[0, 2, 2], &[1, 1]).to_dense(-1, 6).is_err());
    }

    #[test]
    fn what_json_cannot_say_is_said_as_well_as_it_can() {
        let t = TensorData::from_f32([f32::NEG_INFINITY, f32::INFINITY, f32::NAN]);
        let read = parse(&serde_json::to_string(&t).unwrap()).unwrap();
        assert_eq!(read.values, TensorValues::Float32(vec![f32::MIN, f32::MAX, 0.0]));
    }

    #[test]
    fn json_round_trip() {
        let t = TensorData::from_f32([0.1, -2.5]);
        assert_eq!(parse(&serde_json::to_string(&t).unwrap()).unwrap(), t);
    }
}
