// A module whose function throws.
export default ({ ranks }) => {
  throw new RangeError(`${ranks} ranks are too few`);
};
