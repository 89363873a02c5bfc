//! What a custom loss follows on its way from the logprobs: changes in place, and what has a derivative.

use serde_json::{Value, json};

use super::custom_loss::{datum, node, of, plain, refused};

#[test]
fn a_loss_without_a_derivative_is_refused() {
    let sum = |of_: &str| node("call_method", "loss", "sum", json!([of(of_)]));
    let part = |op: &str, target: &str, args: Value| node(op, "part", target, args);
    for flat in [
        part("call_method", "detach", json!([of("x")])),
        part("call_function", "builtins.getattr", json!([of("x"), "data"])),
        part("call_function", "operator.lt", json!([of("x"), -1.0])),
        part("call_method", "isfinite", json!([of("x")])),
        part("call_method", "argmax", json!([of("x")])),
        part("call_function", "torch.ones_like", json!([of("x")])),
    ] {
        let scaled = node("call_method", "scaled", "mul", json!([of("part"), 0.5]));
        refused(
            plain(&[flat.clone(), scaled.clone(), sum("scaled")], "loss"),
            &["does not depend on logprobs", "detach"],
        );
        // What has no derivative may stand beside what has one.
        let beside = node("call_method", "beside", "mul", json!([of("scaled"), of("x")]));
        let program = plain(&[flat, scaled, beside, sum("beside")], "loss").unwrap();
        assert!(program.evaluate(&datum(2, 1, vec![]), &[-1.0, -2.0]).is_ok());
    }
    // Whether a cast ends the derivative is known only when it is done.
    let cast = part("call_method", "to", json!([of("x"), { "dtype": "int64" }]));
    let back = node("call_method", "scaled", "mul", json!([of("part"), 0.5]));
    let program = plain(&[cast, back, sum("scaled")], "loss").unwrap();
    refused(program.evaluate(&datum(2, 1, vec![]), &[-1.0, -2.0]), &["does not depend on logprobs"]);
    // A derivative of zero is one.
    let floor = part("call_method", "floor", json!([of("x")]));
    let flat = plain(&[floor, sum("part")], "loss").unwrap().evaluate(&datum(2, 1, vec![]), &[-1.0, -2.5]).unwrap();
    assert_eq!((flat.value, flat.d_logprobs), (-4.0, vec![0.0; 2]));
}

#[test]
fn what_an_operation_in_place_changed_is_followed_or_refused() {
    let steps = |read: &str| {
        [
            node("call_function", "y", "operator.mul", json!([of("x"), 2])),
            node("call_function", "part", "operator.getitem", json!([of("y"), 0])),
            node("call_method", "add_", "add_", json!([of("y"), 1])),
            node("call_method", "loss", "sum", json!([of(read)])),
        ]
    };
    let value =
        |read: &str| plain(&steps(read), "loss").unwrap().evaluate(&datum(2, 1, vec![]), &[-1.0, -2.0]).unwrap().value;
    assert_eq!((value("y"), value("add_")), (-4.0, -4.0));
    refused(plain(&steps("part"), "loss"), &["part", "add_", "in place"]);
}
